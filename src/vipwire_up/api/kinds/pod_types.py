"""The types of Pods, complete enough to accept a Deployment's Pod as it is.

vipwire does not run Pods: fields that only a kubelet reads (volumes' sources, security, scheduling) have type `any`:
they are stored and shown without validation.
"""

from typing import Final

from vipwire_up.api.kinds.meta import META
from vipwire_up.api.objects.schema import Type, read_types

CORE_PREFIX: Final = "io.k8s.api.core.v1"

_TABLE: Final = """
kind Pod | A workload with an address: a process, container, virtual machine or other host.
  spec PodSpec #2 default={} | Desired state of the Pod.
  status PodStatus #3 | Observed state of the Pod.
PodSpec | Desired state of a Pod.
  activeDeadlineSeconds int64 #5 range=1..2147483647 | Longest time of the Pod, in seconds.
  affinity any #18 | Constraints for the scheduler.
  automountServiceAccountToken bool #21 | True if containers get a token of the service account.
  containers []Container #2 required key=name merge=name | Containers of the Pod; at least one.
  dnsConfig PodDNSConfig #26 | DNS settings of the Pod, in addition to dnsPolicy.
  dnsPolicy string #6 default=ClusterFirst one=ClusterFirst,ClusterFirstWithHostNet,Default,None | DNS policy.
  enableServiceLinks bool #30 default=true | True if environment variables name the Services of the namespace.
  ephemeralContainers []any #34 | Containers for debugging.
  hostAliases []HostAlias #23 key=ip merge=ip | Lines for /etc/hosts.
  hostIPC bool #13 | True if the Pod uses the Node's IPC namespace.
  hostNetwork bool #11 | True if the Pod uses the Node's network namespace.
  hostPID bool #12 | True if the Pod uses the Node's PID namespace.
  hostUsers bool #37 | True if the Pod uses the Node's user namespace.
  hostname string #16 max=63 | Hostname of the Pod, which is in DNS below the subdomain.
  hostnameOverride string max=64 | Hostname inside the Pod, which is not in DNS.
  imagePullSecrets []LocalObjectReference #15 key=name merge=name | Secrets for pulling images.
  initContainers []Container #20 key=name merge=name | Containers that must complete before the others start.
  nodeName string #10 | Name of the Node with the Pod.
  nodeSelector {}string #7 atomic | Labels that the Node must have.
  os any #36 | Operating system of the containers.
  overhead {}quantity #32 | Resources that the Pod itself uses.
  preemptionPolicy string #31 | Policy for the preemption of Pods with lower priority.
  priority int32 #25 | Priority of the Pod.
  priorityClassName string #24 | Name of the PriorityClass.
  readinessGates []PodReadinessGate #28 atomic | Further conditions that must be True for a ready Pod.
  resourceClaims []any #39 | Devices that the Pod claims.
  resources ResourceRequirements #40 | Resources of the whole Pod.
  restartPolicy string #3 default=Always one=Always,OnFailure,Never | Restart policy of containers.
  runtimeClassName string #29 | Name of the RuntimeClass.
  schedulerName string #19 default=default-scheduler | Name of the scheduler.
  schedulingGates []any #38 | Gates that block the scheduling of the Pod.
  securityContext any #14 default={} | Security settings of all containers.
  serviceAccount string #9 | Deprecated: use serviceAccountName.
  serviceAccountName string #8 | Name of the ServiceAccount of the Pod.
  setHostnameAsFQDN bool #35 | True if the hostname is the fully qualified domain name.
  shareProcessNamespace bool #27 | True if all containers share one PID namespace.
  subdomain string #17 | Name of the headless Service below which DNS has the hostname.
  terminationGracePeriodSeconds int64 #4 default=30 | Seconds from the deletion to the end of the containers.
  tolerations []Toleration #22 atomic | Taints that the Pod tolerates.
  topologySpreadConstraints []any #33 | Constraints on the spread of Pods over domains.
  volumes []Volume #1 key=name merge=name retain | Volumes that containers can mount.
Container | A container, or with vipwire the program that listens on the Pod's ports.
  args []string #4 atomic | Arguments of the command.
  command []string #3 atomic | Command of the container.
  env []EnvVar #7 key=name merge=name | Environment variables.
  envFrom []any #19 | Sources of environment variables.
  image string #2 | Container image.
  imagePullPolicy string #14 one=Always,IfNotPresent,Never | Policy for pulling the image.
  lifecycle any #12 | Hooks after the start and before the stop.
  livenessProbe Probe #10 | Probe after whose failure the container restarts.
  name string #1 required max=63 | Name of the container.
  ports []ContainerPort #6 key=containerPort,protocol merge=containerPort | Ports on which the container listens.
  readinessProbe Probe #11 | Probe that decides the readiness of the Pod.
  resizePolicy []any #23 | Policy for changes of resources.
  resources ResourceRequirements #8 | Resources of the container.
  restartPolicy string #24 | Restart policy of an init container.
  restartPolicyRules []any | Rules for restarts, by exit code.
  securityContext any #15 | Security settings of the container.
  startupProbe Probe #22 | Probe that delays the other probes until its success.
  stdin bool #16 | True if the container has a standard input.
  stdinOnce bool #17 | True if the standard input closes after the first attach.
  terminationMessagePath string #13 default=/dev/termination-log | File with the termination message.
  terminationMessagePolicy string #20 default=File one=File,FallbackToLogsOnError | Source of the message.
  tty bool #18 | True if the container has a terminal.
  volumeDevices []VolumeDevice #21 key=devicePath merge=devicePath | Block devices of the container.
  volumeMounts []VolumeMount #9 key=mountPath merge=mountPath | Volumes of the container and their paths.
  workingDir string #5 | Working directory of the command.
ContainerPort | A port on which a container listens.
  containerPort int32 #3 required range=1..65535 | Number of the port.
  hostIP string #5 | Address of the Node for hostPort.
  hostPort int32 #2 range=0..65535 | Port of the Node that leads to the container.
  name string #1 max=15 | Name of the port, to which a Service's targetPort can refer.
  protocol string #4 default=TCP one=TCP,UDP,SCTP | Transport protocol: TCP, UDP or SCTP.
EnvVar | An environment variable.
  name string #1 required | Name of the variable.
  value string #2 | Value of the variable.
  valueFrom any #3 | Source of the value.
Probe | A periodic check of a container.
  exec ExecAction #1.1 | Command that must exit with code 0.
  failureThreshold int32 #6 default=3 range=1..2147483647 | Consecutive failures before the probe counts as failed.
  grpc GRPCAction #1.4 | Check by gRPC's health service.
  httpGet HTTPGetAction #1.2 | HTTP request, whose response must have a status from 200 to 399.
  initialDelaySeconds int32 #2 range=0..2147483647 | Seconds before the first check.
  periodSeconds int32 #4 default=10 range=1..2147483647 | Seconds between checks.
  successThreshold int32 #5 default=1 range=1..2147483647 | Consecutive successes before the probe counts as good.
  tcpSocket TCPSocketAction #1.3 | TCP connection, which must succeed.
  terminationGracePeriodSeconds int64 #7 | Seconds to stop after a failed liveness probe.
  timeoutSeconds int32 #3 default=1 range=1..2147483647 | Timeout of a check, in seconds.
ExecAction | A command to run.
  command []string #1 atomic | The command and its arguments, without a shell.
GRPCAction | A call of gRPC's health service.
  port int32 #1 required range=1..65535 | Number of the port.
  service string #2 | Name of the service in the request.
HTTPGetAction | An HTTP request.
  host string #3 | Host to connect to; empty means the Pod's address.
  httpHeaders []HTTPHeader #5 atomic | Headers of the request.
  path string #1 default=/ | Path of the request.
  port intstr #2 required | Number or name of the port.
  scheme string #4 default=HTTP one=HTTP,HTTPS | Scheme: HTTP or HTTPS.
HTTPHeader | An HTTP header.
  name string #1 required | Name of the header.
  value string #2 required | Value of the header.
TCPSocketAction | A TCP connection.
  host string #2 | Host to connect to; empty means the Pod's address.
  port intstr #1 required | Number or name of the port.
ResourceRequirements | Requests and limits of resources.
  claims []any #3 | Devices of the container.
  limits {}quantity #1 | Largest amounts of resources.
  requests {}quantity #2 | Smallest amounts of resources.
Volume | A volume, with one source.
  name string #1 required max=63 | Name of the volume.
  awsElasticBlockStore any #2.4 | A disk of AWS.
  azureDisk any #2.22 | A disk of Azure.
  azureFile any #2.18 | A share of Azure.
  cephfs any #2.14 | A Ceph file system.
  cinder any #2.13 | A disk of OpenStack.
  configMap any #2.19 | Files from a ConfigMap.
  csi any #2.28 | A volume of a CSI driver.
  downwardAPI any #2.16 | Files with fields of the Pod.
  emptyDir any #2.2 | An empty folder.
  ephemeral any #2.29 | A volume that lives as long as the Pod.
  fc any #2.17 | Fibre channel.
  flexVolume any #2.12 | A flex volume.
  flocker any #2.15 | Flocker.
  gcePersistentDisk any #2.3 | A disk of GCE.
  gitRepo any #2.5 | A git repository.
  glusterfs any #2.9 | A Gluster volume.
  hostPath any #2.1 | A file or folder of the Node.
  image any #2.30 | Files of a container image.
  iscsi any #2.8 | An iSCSI disk.
  nfs any #2.7 | An NFS share.
  persistentVolumeClaim any #2.10 | A PersistentVolumeClaim.
  photonPersistentDisk any #2.23 | A disk of Photon.
  portworxVolume any #2.24 | A Portworx volume.
  projected any #2.26 | Several sources in one folder.
  quobyte any #2.21 | A Quobyte volume.
  rbd any #2.11 | A Rados block device.
  scaleIO any #2.25 | A ScaleIO volume.
  secret any #2.6 | Files from a Secret.
  storageos any #2.27 | A StorageOS volume.
  vsphereVolume any #2.20 | A vSphere disk.
VolumeMount | A volume in a container.
  mountPath string #3 required | Path in the container.
  mountPropagation string #5 | Propagation of mounts between Node and container.
  name string #1 required | Name of the volume.
  readOnly bool #2 | True if the container can only read.
  recursiveReadOnly string #7 | Read-only setting of mounts below the path.
  subPath string #4 | Path in the volume.
  subPathExpr string #6 | Path in the volume, with variables.
VolumeDevice | A block device in a container.
  devicePath string #2 required | Path in the container.
  name string #1 required | Name of the volume.
HostAlias | A line of /etc/hosts.
  hostnames []string #2 atomic | Hostnames of the address.
  ip string #1 required | IP address.
LocalObjectReference | Reference to an object in the same namespace.
  name string #1 | Name of the object.
PodDNSConfig | DNS settings of a Pod.
  nameservers []string #1 atomic | Addresses of DNS servers.
  options []PodDNSConfigOption #3 atomic | Options of the resolver.
  searches []string #2 atomic | Search domains.
PodDNSConfigOption | An option of the resolver.
  name string #1 | Name of the option.
  value string #2 | Value of the option.
PodReadinessGate | A condition that must be True for a ready Pod.
  conditionType string #1 required | Type of the condition.
Toleration | A toleration of taints.
  effect string #4 | Effect of the taint; empty means all.
  key string #1 | Key of the taint; empty means all.
  operator string #2 | Operator for the value: Exists or Equal.
  tolerationSeconds int64 #5 | Seconds for which the Pod tolerates NoExecute.
  value string #3 | Value of the taint.
PodStatus | Observed state of a Pod.
  allocatedResources {}quantity | Resources of the Pod.
  conditions []PodCondition #2 key=type merge=type | Conditions of the Pod. Services use Ready.
  containerStatuses []ContainerStatus #8 atomic | State of each container.
  ephemeralContainerStatuses []any #13 | State of each ephemeral container.
  extendedResourceClaimStatus any | Devices of the Pod.
  hostIP string #5 | Address of the Node.
  hostIPs []HostIP #16 atomic | Addresses of the Node.
  initContainerStatuses []ContainerStatus #10 atomic | State of each init container.
  message string #3 | Explanation of the state, for people.
  nominatedNodeName string #11 | Node on which the Pod may run after a preemption.
  observedGeneration int64 #17 | metadata.generation of this status.
  phase string #1 default=Pending one=Pending,Running,Succeeded,Failed,Unknown | Phase of the Pod.
  podIP string #6 | First entry of podIPs.
  podIPs []PodIP #12 key=ip merge=ip | Addresses of the Pod, at most one of each family.
  qosClass string #9 | Quality of service class.
  reason string #4 | Reason for the state, in one word.
  resize string #14 | State of a change of resources.
  resourceClaimStatuses []any #15 | State of the device claims.
  resources ResourceRequirements | Resources of the Pod.
  startTime time #7 | Time at which the kubelet accepted the Pod.
PodCondition | One aspect of a Pod's state.
  lastProbeTime time #3 | Time of the last probe.
  lastTransitionTime time #4 | Time of the last change of status.
  message string #6 | Explanation for people.
  observedGeneration int64 #7 | metadata.generation for which the condition was set.
  reason string #5 | Reason for the status, in one word.
  status string #2 required | Status of the condition: True, False or Unknown.
  type string #1 required | Type of the condition.
PodIP | An address of a Pod.
  ip string #1 required | IP address.
HostIP | An address of a Node.
  ip string #1 required | IP address.
ContainerStatus | State of a container.
  allocatedResources {}quantity #10 | Resources of the container.
  allocatedResourcesStatus []any #14 | State of the container's devices.
  containerID string #8 | Identifier of the container at the runtime.
  image string #6 | Container image.
  imageID string #7 | Digest of the image.
  lastState any #3 | Previous state of the container.
  name string #1 required | Name of the container.
  ready bool #4 required | True if the readiness probe succeeds.
  resources ResourceRequirements #11 | Resources of the container.
  restartCount int32 #5 required | Number of restarts.
  started bool #9 | True if the startup probe has succeeded.
  state any #2 | State of the container: running, waiting or terminated.
  stopSignal string #15 | Signal that stops the container.
  user any #13 | User of the container's processes.
  volumeMounts []any #12 | Mounts of the container.
"""

POD_TYPES: Final[dict[str, Type]] = read_types(_TABLE, CORE_PREFIX, META)
