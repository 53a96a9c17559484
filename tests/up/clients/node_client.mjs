// @kubernetes/client-node.
import assert from "node:assert/strict";
import { createInterface } from "node:readline";
import * as k8s from "@kubernetes/client-node";

const namespace = process.argv[2];
const config = new k8s.KubeConfig();
config.loadFromDefault();
const core = config.makeApiClient(k8s.CoreV1Api);
const custom = config.makeApiClient(k8s.CustomObjectsApi);

const configMap = (name, data = {}) => ({ metadata: { name, namespace, labels: { app: "test" } }, data });
const refused = (code, promise) => assert.rejects(promise, (error) => error instanceof k8s.ApiException && error.code === code);
const contentType = (kind) => k8s.setHeaderOptions("Content-Type", kind);

async function change() {
  const made = await core.createNamespacedConfigMap({ namespace, body: configMap("one", { a: "1" }) });
  await refused(409, core.createNamespacedConfigMap({ namespace, body: configMap("one") }));
  await refused(404, core.readNamespacedConfigMap({ namespace, name: "none" }));
  await core.replaceNamespacedConfigMap({ namespace, name: "one", body: configMap("one", { a: "2" }) });
  await refused(409, core.replaceNamespacedConfigMap({ namespace, name: "one", body: made }));
  for (let n = 0; n < 3; n++) await core.createNamespacedConfigMap({ namespace, body: configMap(`page${n}`) });
  const page = await core.listNamespacedConfigMap({ namespace, limit: 3, labelSelector: "app=test" });
  const rest = await core.listNamespacedConfigMap({ namespace, limit: 3, _continue: page.metadata._continue });
  assert.ok([...page.items, ...rest.items].map((each) => each.metadata.name).includes("page2"));
}

async function patch() {
  const ports = [{ name: "a", port: 80 }, { name: "b", port: 81 }];
  await core.createNamespacedService({ namespace, body: { metadata: { name: "web" }, spec: { ports } } });
  const body = { spec: { ports: [{ name: "c", port: 80 }] } };
  const names = async (kind, sent) =>
    (await core.patchNamespacedService({ namespace, name: "web", body: sent }, contentType(kind))).spec.ports.map((each) => each.name);
  assert.deepEqual(await names(k8s.PatchStrategy.StrategicMergePatch, body), ["c", "b"]);
  assert.deepEqual(await names(k8s.PatchStrategy.MergePatch, body), ["c"]);
  const operation = [{ op: "replace", path: "/spec/ports/0/name", value: "d" }];
  assert.deepEqual(await names(k8s.PatchStrategy.JsonPatch, operation), ["d"]);
  const apply = (a, fieldManager, force) =>
    core.patchNamespacedConfigMap(
      { namespace, name: "applied", fieldManager, force, body: { apiVersion: "v1", kind: "ConfigMap", ...configMap("applied", { a }) } },
      contentType(k8s.PatchStrategy.ServerSideApply),
    );
  await apply("1", "m1");
  await refused(409, apply("2", "m2"));
  assert.equal((await apply("2", "m2", true)).data.a, "2");
}

async function end() {
  const body = configMap("held");
  body.metadata.finalizers = ["a.test/held"];
  await core.createNamespacedConfigMap({ namespace, body });
  await core.deleteNamespacedConfigMap({ namespace, name: "held" });
  assert.ok((await core.readNamespacedConfigMap({ namespace, name: "held" })).metadata.deletionTimestamp);
  const freed = { metadata: { finalizers: null } };
  await core.patchNamespacedConfigMap({ namespace, name: "held", body: freed }, contentType(k8s.PatchStrategy.MergePatch));
  await refused(404, core.readNamespacedConfigMap({ namespace, name: "held" }));
}

async function routes() {
  const place = { group: "gateway.networking.k8s.io", version: "v1", namespace, plural: "httproutes" };
  const body = { apiVersion: "gateway.networking.k8s.io/v1", kind: "HTTPRoute", metadata: { name: "one" }, spec: {} };
  const made = await custom.createNamespacedCustomObject({ ...place, body });
  assert.equal(made.spec.rules[0].matches[0].path.value, "/");
  await refused(422, custom.createNamespacedCustomObject({ ...place, body: { ...body, metadata: { name: "two" }, spec: { hostnames: ["*"] } } }));
}

await core.createNamespace({ body: { metadata: { name: namespace } } });
await change();
await patch();
await end();
await routes();

const waiting = new Map();
const seen = new Set();
const shown = (name) => new Promise((resolve) => (seen.has(name) ? resolve() : waiting.set(name, resolve)));
const path = `/api/v1/namespaces/${namespace}/configmaps`;
const informer = k8s.makeInformer(config, path, () => core.listNamespacedConfigMap({ namespace }));
informer.on("add", (value) => {
  seen.add(value.metadata.name);
  waiting.get(value.metadata.name)?.();
});
informer.on("error", () => setTimeout(() => informer.start().catch(() => {}), 200));
await informer.start();
await core.createNamespacedConfigMap({ namespace, body: configMap("before") });
await shown("before");
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  assert.equal(line, "restarted");
  break;
}
await core.createNamespacedConfigMap({ namespace, body: configMap("after") });
await shown("after");
process.exit(0);
