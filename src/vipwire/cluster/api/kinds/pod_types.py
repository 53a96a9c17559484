"""The types of Pods. Complete enough that a Deployment's Pod is taken as it is.

Nothing here runs Pods: what only a kubelet reads (volumes' sources, security, scheduling) is kept and shown, not looked
into, and therefore of type `any`.
"""

from typing import Final

from vipwire.cluster.api.kinds.meta import META
from vipwire.cluster.api.schema import Type, read_types

CORE_PREFIX: Final = "io.k8s.api.core.v1"

_TABLE: Final = """
kind Pod | A workload with an address: a process, a container, a VM or another host.
  spec PodSpec | What is wanted.
  status PodStatus | What is the case.
PodSpec | What a Pod consists of.
  activeDeadlineSeconds int64 | Seconds that the Pod may run.
  affinity any | Wishes about nodes.
  automountServiceAccountToken bool | Whether a token is mounted.
  containers []Container required key=name merge=name | The containers; at least one.
  dnsConfig PodDNSConfig | How names are resolved, beside dnsPolicy.
  dnsPolicy string default=ClusterFirst one=ClusterFirst,ClusterFirstWithHostNet,Default,None | How names are resolved.
  enableServiceLinks bool default=true | Whether Services are told to containers by environment variables.
  ephemeralContainers []any | Containers added for debugging.
  hostAliases []HostAlias key=ip merge=ip | Lines of /etc/hosts.
  hostIPC bool | Uses the node's IPC namespace.
  hostNetwork bool | Uses the node's network.
  hostPID bool | Uses the node's process ids.
  hostUsers bool | Uses the node's user namespace.
  hostname string max=63 | The Pod's hostname, which DNS knows under the subdomain.
  hostnameOverride string max=64 | The hostname inside the Pod, unknown to DNS.
  imagePullSecrets []LocalObjectReference key=name merge=name | Secrets to pull images with.
  initContainers []Container key=name merge=name | Containers that run to their end before the others.
  nodeName string | The node that the Pod is on.
  nodeSelector {}string atomic | Labels of nodes that are wanted.
  os any | The operating system of the containers.
  overhead {}quantity | Resources that the Pod itself takes.
  preemptionPolicy string | Whether it may displace others.
  priority int32 | Its priority.
  priorityClassName string | The name of its priority.
  readinessGates []PodReadinessGate atomic | Conditions that must also be True for the Pod to be ready.
  resourceClaims []any | Devices it claims.
  resources ResourceRequirements | Resources of the whole Pod.
  restartPolicy string default=Always one=Always,OnFailure,Never | What is done when a container ends.
  runtimeClassName string | The container runtime.
  schedulerName string default=default-scheduler | Who assigns it to a node.
  schedulingGates []any | What keeps it from being scheduled.
  securityContext any default={} | Security settings of all containers.
  serviceAccount string | Old name of serviceAccountName.
  serviceAccountName string | Whom the Pod acts as.
  setHostnameAsFQDN bool | Whether the hostname is the whole name.
  shareProcessNamespace bool | Whether containers see each other's processes.
  subdomain string | The headless Service under which DNS knows the hostname.
  terminationGracePeriodSeconds int64 default=30 range=0..9223372036854775807 | Seconds from deletion to the end.
  tolerations []Toleration atomic | Taints it does not mind.
  topologySpreadConstraints []any | How Pods are spread.
  volumes []Volume key=name merge=name retain | Files that containers can mount.
Container | A container; or here, whatever listens on the Pod's ports.
  args []string atomic | Arguments of the command.
  command []string atomic | The command.
  env []EnvVar key=name merge=name | Environment variables.
  envFrom []any | Sources of environment variables.
  image string | The image.
  imagePullPolicy string one=Always,IfNotPresent,Never | When the image is pulled.
  lifecycle any | What is run after start and before the end.
  livenessProbe Probe | When it is to be restarted.
  name string required max=63 | The container's name.
  ports []ContainerPort key=containerPort,protocol merge=containerPort | What it listens on.
  readinessProbe Probe | When it can take connections.
  resizePolicy []any | How it takes changes of resources.
  resources ResourceRequirements | What it needs.
  restartPolicy string | For init containers that go on running.
  restartPolicyRules []any | When it is restarted, by exit code.
  securityContext any | Security settings.
  startupProbe Probe | When it has started.
  stdin bool | Whether it reads from standard input.
  stdinOnce bool | Whether standard input is closed after the first attach.
  terminationMessagePath string default=/dev/termination-log | Where it leaves its last words.
  terminationMessagePolicy string default=File one=File,FallbackToLogsOnError | Where last words are read.
  tty bool | Whether it has a terminal.
  volumeDevices []VolumeDevice key=devicePath merge=devicePath | Block devices.
  volumeMounts []VolumeMount key=mountPath merge=mountPath | Where volumes are.
  workingDir string | The directory it starts in.
ContainerPort | A port that a container listens on.
  containerPort int32 required range=1..65535 | The number.
  hostIP string | The node's address that the port is also at.
  hostPort int32 range=0..65535 | The node's port that leads here.
  name string max=15 | A name that a Service's targetPort can refer to.
  protocol string default=TCP one=TCP,UDP,SCTP | The protocol.
EnvVar | An environment variable.
  name string required | Its name.
  value string | Its value.
  valueFrom any | Where its value comes from.
Probe | A question whose answer decides about a container.
  exec ExecAction | Run a command; exit code 0 is good.
  failureThreshold int32 default=3 range=1..2147483647 | Failures in a row that count as failed.
  grpc GRPCAction | Ask gRPC's health service.
  httpGet HTTPGetAction | Ask by HTTP; 200 to 399 is good.
  initialDelaySeconds int32 range=0..2147483647 | Seconds before the first time.
  periodSeconds int32 default=10 range=1..2147483647 | Seconds between two times.
  successThreshold int32 default=1 range=1..2147483647 | Successes in a row that count as good.
  tcpSocket TCPSocketAction | Connect by TCP.
  terminationGracePeriodSeconds int64 | Seconds to end after a failed liveness probe.
  timeoutSeconds int32 default=1 range=1..2147483647 | Seconds to wait for an answer.
ExecAction | A command to run.
  command []string atomic | The command and its arguments; no shell is involved.
GRPCAction | A call of gRPC's health service.
  port int32 required range=1..65535 | The port.
  service string | The service asked about.
HTTPGetAction | An HTTP request.
  host string | Where to connect to; the Pod's address if not given.
  httpHeaders []HTTPHeader atomic | Headers to send.
  path string default=/ | The path.
  port intstr required | Number or name of the port.
  scheme string default=HTTP one=HTTP,HTTPS | HTTP or HTTPS.
HTTPHeader | An HTTP header.
  name string required | Its name.
  value string required | Its value.
TCPSocketAction | A connection by TCP.
  host string | Where to connect to; the Pod's address if not given.
  port intstr required | Number or name of the port.
ResourceRequirements | Amounts of CPU, memory and others.
  claims []any | Devices.
  limits {}quantity | What may be used at most.
  requests {}quantity | What is needed at least.
Volume | Files for containers. Of its sources one is given.
  name string required max=63 | Its name.
  awsElasticBlockStore any | A disk of AWS.
  azureDisk any | A disk of Azure.
  azureFile any | A share of Azure.
  cephfs any | A Ceph file system.
  cinder any | A disk of OpenStack.
  configMap any | Files out of a ConfigMap.
  csi any | A volume of a CSI driver.
  downwardAPI any | Files about the Pod itself.
  emptyDir any | An empty directory.
  ephemeral any | A volume that lives as long as the Pod.
  fc any | Fibre channel.
  flexVolume any | A flex volume.
  flocker any | Flocker.
  gcePersistentDisk any | A disk of GCE.
  gitRepo any | A git repository.
  glusterfs any | A Gluster volume.
  hostPath any | A path of the node.
  image any | An image's files.
  iscsi any | An iSCSI disk.
  nfs any | An NFS share.
  persistentVolumeClaim any | A claimed volume.
  photonPersistentDisk any | A disk of Photon.
  portworxVolume any | A Portworx volume.
  projected any | Several sources in one directory.
  quobyte any | A Quobyte volume.
  rbd any | A Rados block device.
  scaleIO any | A ScaleIO volume.
  secret any | Files out of a Secret.
  storageos any | A StorageOS volume.
  vsphereVolume any | A vSphere disk.
VolumeMount | Where a volume is in a container.
  mountPath string required | The path.
  mountPropagation string | Whether mounts pass between node and container.
  name string required | The volume's name.
  readOnly bool | Whether it can only be read.
  recursiveReadOnly string | Whether that holds for mounts below it.
  subPath string | The part of the volume.
  subPathExpr string | The same, with variables.
VolumeDevice | A block device in a container.
  devicePath string required | The path.
  name string required | The volume's name.
HostAlias | A line of /etc/hosts.
  hostnames []string atomic | The names.
  ip string required | The address.
LocalObjectReference | Names an object of the same namespace.
  name string | Its name.
PodDNSConfig | How a Pod resolves names.
  nameservers []string atomic | Addresses of servers.
  options []PodDNSConfigOption atomic | Options of the resolver.
  searches []string atomic | Domains to search.
PodDNSConfigOption | An option of the resolver.
  name string | Its name.
  value string | Its value.
PodReadinessGate | A condition that readiness depends on.
  conditionType string required | The condition.
Toleration | A taint that a Pod does not mind.
  effect string | The effect.
  key string | The taint.
  operator string | How the value is compared.
  tolerationSeconds int64 | For how long.
  value string | The value.
PodStatus | What is the case about a Pod.
  allocatedResources {}quantity | Resources it has been given.
  conditions []PodCondition key=type merge=type | Ready is what Services look at.
  containerStatuses []ContainerStatus atomic | Each container's state.
  ephemeralContainerStatuses []any | States of containers added for debugging.
  extendedResourceClaimStatus any | Devices it got.
  hostIP string | The node's address.
  hostIPs []HostIP atomic | The node's addresses.
  initContainerStatuses []ContainerStatus atomic | States of the init containers.
  message string | A sentence about why it is in this state.
  nominatedNodeName string | Where it may go.
  observedGeneration int64 | The generation that this is about.
  phase string default=Pending one=Pending,Running,Succeeded,Failed,Unknown | The step of its life.
  podIP string | Its address.
  podIPs []PodIP key=ip merge=ip | Its addresses, at most one of each family.
  qosClass string | Its class of service.
  reason string | A word about why it is in this state.
  resize string | State of a change of resources.
  resourceClaimStatuses []any | Devices.
  resources ResourceRequirements | Resources it has.
  startTime time | When it was taken on.
PodCondition | One aspect of a Pod's state.
  lastProbeTime time | When it was last asked.
  lastTransitionTime time | When it last changed.
  message string | A sentence about why.
  observedGeneration int64 | The generation that this is about.
  reason string | A word about why.
  status string required | True, False or Unknown.
  type string required | The aspect.
PodIP | An address of a Pod.
  ip string required | The address.
HostIP | An address of a node.
  ip string required | The address.
ContainerStatus | A container's state.
  allocatedResources {}quantity | Resources it has been given.
  allocatedResourcesStatus []any | States of its devices.
  containerID string | What the runtime calls it.
  image string | The image.
  imageID string | The image's digest.
  lastState any | Its state before.
  name string required | Its name.
  ready bool required | Whether it can take connections.
  resources ResourceRequirements | Resources it has.
  restartCount int32 required | How often it was restarted.
  started bool | Whether it has started.
  state any | Running, waiting or terminated.
  stopSignal string | The signal that ends it.
  user any | Whom it runs as.
  volumeMounts []any | Its mounts.
"""

POD_TYPES: Final[dict[str, Type]] = read_types(_TABLE, CORE_PREFIX, META)
