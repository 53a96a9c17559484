"""A proxy that takes long to render each Service, and says so: `python -m tests.fakes.slow_rendering proxy …`."""

import os
import time

from vipwire.cli.start import start
from vipwire.model.net import Family
from vipwire.modes.nftables import pooled
from vipwire.modes.nftables.table.names import Object, ObjectKey
from vipwire.modes.nftables.table.render import render_service
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.backend import Rendered

SECONDS = 0.2


def render_slowly(family: Family, plan: ServicePlan, *, blocks: bool) -> Rendered[ObjectKey, Object]:
    os.write(1, b"renders\n")
    time.sleep(SECONDS)
    return render_service(family, plan, blocks=blocks)


if __name__ == "__main__":
    vars(pooled).update(render_service=render_slowly)
    start()
