"""The types of Pods, complete enough to accept a Deployment's Pod as it is.

vipwire does not run Pods: fields that only a kubelet reads (volumes' sources, security, scheduling) have type `any`:
they are stored and shown without validation.
"""

from typing import Final

from vipwire_up.api.kinds.meta import META
from vipwire_up.api.objects.schema import Type, read_types

CORE_PREFIX: Final = "io.k8s.api.core.v1"

_TABLE: Final = """
kind Pod | A workload with an address: a process, a container, a VM or another host.
  spec PodSpec #2 default={} | What is wanted.
  status PodStatus #3 | What is the case.
PodSpec | What a Pod consists of.
  activeDeadlineSeconds int64 #5 range=1..2147483647 | Seconds that the Pod may run.
  affinity any #18 | Wishes about nodes.
  automountServiceAccountToken bool #21 | Whether a token is mounted.
  containers []Container #2 required key=name merge=name | The containers; at least one.
  dnsConfig PodDNSConfig #26 | How names are resolved, beside dnsPolicy.
  dnsPolicy string #6 default=ClusterFirst one=ClusterFirst,ClusterFirstWithHostNet,Default,None | How it resolves.
  enableServiceLinks bool #30 default=true | Whether Services are told to containers by environment variables.
  ephemeralContainers []any #34 | Containers added for debugging.
  hostAliases []HostAlias #23 key=ip merge=ip | Lines of /etc/hosts.
  hostIPC bool #13 | Uses the node's IPC namespace.
  hostNetwork bool #11 | Uses the node's network.
  hostPID bool #12 | Uses the node's process ids.
  hostUsers bool #37 | Uses the node's user namespace.
  hostname string #16 max=63 | The Pod's hostname, which DNS knows under the subdomain.
  hostnameOverride string max=64 | The hostname inside the Pod, unknown to DNS.
  imagePullSecrets []LocalObjectReference #15 key=name merge=name | Secrets to pull images with.
  initContainers []Container #20 key=name merge=name | Containers that run to their end before the others.
  nodeName string #10 | The node that the Pod is on.
  nodeSelector {}string #7 atomic | Labels of nodes that are wanted.
  os any #36 | The operating system of the containers.
  overhead {}quantity #32 | Resources that the Pod itself takes.
  preemptionPolicy string #31 | Whether it may displace others.
  priority int32 #25 | Its priority.
  priorityClassName string #24 | The name of its priority.
  readinessGates []PodReadinessGate #28 atomic | Conditions that must also be True for the Pod to be ready.
  resourceClaims []any #39 | Devices it claims.
  resources ResourceRequirements #40 | Resources of the whole Pod.
  restartPolicy string #3 default=Always one=Always,OnFailure,Never | What is done when a container ends.
  runtimeClassName string #29 | The container runtime.
  schedulerName string #19 default=default-scheduler | Who assigns it to a node.
  schedulingGates []any #38 | What keeps it from being scheduled.
  securityContext any #14 default={} | Security settings of all containers.
  serviceAccount string #9 | Old name of serviceAccountName.
  serviceAccountName string #8 | Whom the Pod acts as.
  setHostnameAsFQDN bool #35 | Whether the hostname is the whole name.
  shareProcessNamespace bool #27 | Whether containers see each other's processes.
  subdomain string #17 | The headless Service under which DNS knows the hostname.
  terminationGracePeriodSeconds int64 #4 default=30 | Seconds from deletion to the end.
  tolerations []Toleration #22 atomic | Taints it does not mind.
  topologySpreadConstraints []any #33 | How Pods are spread.
  volumes []Volume #1 key=name merge=name retain | Files that containers can mount.
Container | A container; or here, whatever listens on the Pod's ports.
  args []string #4 atomic | Arguments of the command.
  command []string #3 atomic | The command.
  env []EnvVar #7 key=name merge=name | Environment variables.
  envFrom []any #19 | Sources of environment variables.
  image string #2 | The image.
  imagePullPolicy string #14 one=Always,IfNotPresent,Never | When the image is pulled.
  lifecycle any #12 | What is run after start and before the end.
  livenessProbe Probe #10 | When it is to be restarted.
  name string #1 required max=63 | The container's name.
  ports []ContainerPort #6 key=containerPort,protocol merge=containerPort | What it listens on.
  readinessProbe Probe #11 | When it can take connections.
  resizePolicy []any #23 | How it takes changes of resources.
  resources ResourceRequirements #8 | What it needs.
  restartPolicy string #24 | For init containers that go on running.
  restartPolicyRules []any | When it is restarted, by exit code.
  securityContext any #15 | Security settings.
  startupProbe Probe #22 | When it has started.
  stdin bool #16 | Whether it reads from standard input.
  stdinOnce bool #17 | Whether standard input is closed after the first attach.
  terminationMessagePath string #13 default=/dev/termination-log | Where it leaves its last words.
  terminationMessagePolicy string #20 default=File one=File,FallbackToLogsOnError | Where last words are read.
  tty bool #18 | Whether it has a terminal.
  volumeDevices []VolumeDevice #21 key=devicePath merge=devicePath | Block devices.
  volumeMounts []VolumeMount #9 key=mountPath merge=mountPath | Where volumes are.
  workingDir string #5 | The directory it starts in.
ContainerPort | A port that a container listens on.
  containerPort int32 #3 required range=1..65535 | The number.
  hostIP string #5 | The node's address that the port is also at.
  hostPort int32 #2 range=0..65535 | The node's port that leads here.
  name string #1 max=15 | A name that a Service's targetPort can refer to.
  protocol string #4 default=TCP one=TCP,UDP,SCTP | The protocol.
EnvVar | An environment variable.
  name string #1 required | Its name.
  value string #2 | Its value.
  valueFrom any #3 | Where its value comes from.
Probe | A question whose answer decides about a container.
  exec ExecAction #1.1 | Run a command; exit code 0 is good.
  failureThreshold int32 #6 default=3 range=1..2147483647 | Failures in a row that count as failed.
  grpc GRPCAction #1.4 | Ask gRPC's health service.
  httpGet HTTPGetAction #1.2 | Ask by HTTP; 200 to 399 is good.
  initialDelaySeconds int32 #2 range=0..2147483647 | Seconds before the first time.
  periodSeconds int32 #4 default=10 range=1..2147483647 | Seconds between two times.
  successThreshold int32 #5 default=1 range=1..2147483647 | Successes in a row that count as good.
  tcpSocket TCPSocketAction #1.3 | Connect by TCP.
  terminationGracePeriodSeconds int64 #7 | Seconds to end after a failed liveness probe.
  timeoutSeconds int32 #3 default=1 range=1..2147483647 | Seconds to wait for an answer.
ExecAction | A command to run.
  command []string #1 atomic | The command and its arguments; no shell is involved.
GRPCAction | A call of gRPC's health service.
  port int32 #1 required range=1..65535 | The port.
  service string #2 | The service asked about.
HTTPGetAction | An HTTP request.
  host string #3 | Where to connect to; the Pod's address if not given.
  httpHeaders []HTTPHeader #5 atomic | Headers to send.
  path string #1 default=/ | The path.
  port intstr #2 required | Number or name of the port.
  scheme string #4 default=HTTP one=HTTP,HTTPS | HTTP or HTTPS.
HTTPHeader | An HTTP header.
  name string #1 required | Its name.
  value string #2 required | Its value.
TCPSocketAction | A connection by TCP.
  host string #2 | Where to connect to; the Pod's address if not given.
  port intstr #1 required | Number or name of the port.
ResourceRequirements | Amounts of CPU, memory and others.
  claims []any #3 | Devices.
  limits {}quantity #1 | What may be used at most.
  requests {}quantity #2 | What is needed at least.
Volume | Files for containers. Of its sources one is given.
  name string #1 required max=63 | Its name.
  awsElasticBlockStore any #2.4 | A disk of AWS.
  azureDisk any #2.22 | A disk of Azure.
  azureFile any #2.18 | A share of Azure.
  cephfs any #2.14 | A Ceph file system.
  cinder any #2.13 | A disk of OpenStack.
  configMap any #2.19 | Files out of a ConfigMap.
  csi any #2.28 | A volume of a CSI driver.
  downwardAPI any #2.16 | Files about the Pod itself.
  emptyDir any #2.2 | An empty directory.
  ephemeral any #2.29 | A volume that lives as long as the Pod.
  fc any #2.17 | Fibre channel.
  flexVolume any #2.12 | A flex volume.
  flocker any #2.15 | Flocker.
  gcePersistentDisk any #2.3 | A disk of GCE.
  gitRepo any #2.5 | A git repository.
  glusterfs any #2.9 | A Gluster volume.
  hostPath any #2.1 | A path of the node.
  image any #2.30 | An image's files.
  iscsi any #2.8 | An iSCSI disk.
  nfs any #2.7 | An NFS share.
  persistentVolumeClaim any #2.10 | A claimed volume.
  photonPersistentDisk any #2.23 | A disk of Photon.
  portworxVolume any #2.24 | A Portworx volume.
  projected any #2.26 | Several sources in one directory.
  quobyte any #2.21 | A Quobyte volume.
  rbd any #2.11 | A Rados block device.
  scaleIO any #2.25 | A ScaleIO volume.
  secret any #2.6 | Files out of a Secret.
  storageos any #2.27 | A StorageOS volume.
  vsphereVolume any #2.20 | A vSphere disk.
VolumeMount | Where a volume is in a container.
  mountPath string #3 required | The path.
  mountPropagation string #5 | Whether mounts pass between node and container.
  name string #1 required | The volume's name.
  readOnly bool #2 | Whether it can only be read.
  recursiveReadOnly string #7 | Whether that holds for mounts below it.
  subPath string #4 | The part of the volume.
  subPathExpr string #6 | The same, with variables.
VolumeDevice | A block device in a container.
  devicePath string #2 required | The path.
  name string #1 required | The volume's name.
HostAlias | A line of /etc/hosts.
  hostnames []string #2 atomic | The names.
  ip string #1 required | The address.
LocalObjectReference | Names an object of the same namespace.
  name string #1 | Its name.
PodDNSConfig | How a Pod resolves names.
  nameservers []string #1 atomic | Addresses of servers.
  options []PodDNSConfigOption #3 atomic | Options of the resolver.
  searches []string #2 atomic | Domains to search.
PodDNSConfigOption | An option of the resolver.
  name string #1 | Its name.
  value string #2 | Its value.
PodReadinessGate | A condition that readiness depends on.
  conditionType string #1 required | The condition.
Toleration | A taint that a Pod does not mind.
  effect string #4 | The effect.
  key string #1 | The taint.
  operator string #2 | How the value is compared.
  tolerationSeconds int64 #5 | For how long.
  value string #3 | The value.
PodStatus | What is the case about a Pod.
  allocatedResources {}quantity | Resources it has been given.
  conditions []PodCondition #2 key=type merge=type | Ready is what Services look at.
  containerStatuses []ContainerStatus #8 atomic | Each container's state.
  ephemeralContainerStatuses []any #13 | States of containers added for debugging.
  extendedResourceClaimStatus any | Devices it got.
  hostIP string #5 | The node's address.
  hostIPs []HostIP #16 atomic | The node's addresses.
  initContainerStatuses []ContainerStatus #10 atomic | States of the init containers.
  message string #3 | A sentence about why it is in this state.
  nominatedNodeName string #11 | Where it may go.
  observedGeneration int64 #17 | The generation that this is about.
  phase string #1 default=Pending one=Pending,Running,Succeeded,Failed,Unknown | The step of its life.
  podIP string #6 | Its address.
  podIPs []PodIP #12 key=ip merge=ip | Its addresses, at most one of each family.
  qosClass string #9 | Its class of service.
  reason string #4 | A word about why it is in this state.
  resize string #14 | State of a change of resources.
  resourceClaimStatuses []any #15 | Devices.
  resources ResourceRequirements | Resources it has.
  startTime time #7 | When it was taken on.
PodCondition | One aspect of a Pod's state.
  lastProbeTime time #3 | When it was last asked.
  lastTransitionTime time #4 | When it last changed.
  message string #6 | A sentence about why.
  observedGeneration int64 #7 | The generation that this is about.
  reason string #5 | A word about why.
  status string #2 required | True, False or Unknown.
  type string #1 required | The aspect.
PodIP | An address of a Pod.
  ip string #1 required | The address.
HostIP | An address of a node.
  ip string #1 required | The address.
ContainerStatus | A container's state.
  allocatedResources {}quantity #10 | Resources it has been given.
  allocatedResourcesStatus []any #14 | States of its devices.
  containerID string #8 | What the runtime calls it.
  image string #6 | The image.
  imageID string #7 | The image's digest.
  lastState any #3 | Its state before.
  name string #1 required | Its name.
  ready bool #4 required | Whether it can take connections.
  resources ResourceRequirements #11 | Resources it has.
  restartCount int32 #5 required | How often it was restarted.
  started bool #9 | Whether it has started.
  state any #2 | Running, waiting or terminated.
  stopSignal string #15 | The signal that ends it.
  user any #13 | Whom it runs as.
  volumeMounts []any #12 | Its mounts.
"""

POD_TYPES: Final[dict[str, Type]] = read_types(_TABLE, CORE_PREFIX, META)
