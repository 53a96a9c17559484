"""The script that does the walk of docs/three-servers.md reads the page as a person does."""

from scripts.three_servers import PAGE, Block, blocks


def test_the_page_has_the_steps_that_the_script_knows() -> None:
    page = list(blocks(PAGE.read_text(encoding="utf-8")))
    found = [[each.language for each in page if each.heading.startswith(f"{number} ")] for number in range(1, 6)]
    assert [len(each) for each in found] == [2, 3, 1, 2, 1]
    assert [found[step][-1] for step in (1, 2, 4)] == ["console"] * 3
    others, address = (page[number].commands().splitlines() for number in (5, 8))
    assert others[0].startswith("vipwire join https://10.0.0.1:6443 --token ")
    assert [line.partition(" #")[0].rstrip() for line in others[1:]] == [
        "vipwire install systemd up",
        "systemctl enable --now vipwire-up",
        "export KUBECONFIG=/var/lib/vipwire/admin.kubeconfig",
        "kubectl get nodes",
    ]
    assert [line.split()[0] for line in address] == ["vipwire", "kubectl", "curl"]


def test_what_installs_is_left_out() -> None:
    text = "apt install haproxy\nvipwire install systemd --now ingress\n"
    assert Block("1 a", "sh", text).commands() == "vipwire install systemd --now ingress"
