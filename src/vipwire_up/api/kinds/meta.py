"""The types that all kinds share: ObjectMeta and its parts, and label selectors."""

from typing import Final

from vipwire_up.api.objects.schema import Type, read_types

PREFIX: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"

_TABLE: Final = """
OwnerReference | Reference to an owner. The garbage collector deletes an object without owners.
  apiVersion string #5 required | API version of the owner.
  kind string #1 required | Kind of the owner.
  name string #3 required | Name of the owner.
  uid string #4 required | UID of the owner.
  controller bool #6 | True if this owner is the managing controller; at most one is.
  blockOwnerDeletion bool #7 | True if a foreground deletion of the owner waits for this object.
ManagedFieldsEntry | Fields that one manager has set.
  manager string #1 | Name of the manager.
  operation string #2 | Operation that made the manager own the fields: Apply or Update.
  apiVersion string #3 | API version of the field names.
  time time #4 | Time of the manager's last write.
  fieldsType string #6 | Format of fieldsV1: always FieldsV1.
  fieldsV1 any #7 | Fields: f:name, k:{keys} and v:value, nested.
  subresource string #8 | Subresource that the manager wrote; empty for the object itself.
ObjectMeta | Metadata of every object.
  name string #1 | Name, unique for the kind in the namespace. Immutable.
  generateName string #2 | Prefix of the name, to which the server adds a unique suffix if name is empty.
  namespace string #3 | Namespace of the object. Immutable.
  uid string #5 | Unique identifier of the object. Set by the server.
  resourceVersion string #6 | Version of the object. The server rejects an update with an older version.
  generation int64 #7 | Number of the desired state. Set by the server.
  creationTimestamp time #8 | Time of creation. Set by the server.
  deletionTimestamp time #9 | Time at which the server deletes the object. Set by the server on a deletion.
  deletionGracePeriodSeconds int64 #10 | Seconds from the request to the deletion. Set by the server.
  labels {}string #11 | Keys and values that selectors match.
  annotations {}string #12 | Keys and values for tools. Selectors do not match them.
  ownerReferences []OwnerReference #13 key=uid merge=uid | Owners of the object.
  finalizers []string #14 set merge=- | Identifiers of components that must act before the deletion.
  managedFields []ManagedFieldsEntry #17 atomic | Managers and the fields that they have set. Set by the server.
  selfLink string #4 | Deprecated and unused.
LabelSelectorRequirement | A condition on one label.
  key string #1 required | Key of the label.
  operator string #2 required one=In,NotIn,Exists,DoesNotExist | Operator between the label and values.
  values []string #3 atomic | Values for In and NotIn.
LabelSelector | A selector of objects by their labels. An empty selector matches all objects.
  matchLabels {}string #1 | Labels that must be equal.
  matchExpressions []LabelSelectorRequirement #2 atomic | Conditions, all of which must be true.
Condition | One aspect of an object's state.
  type string #1 required max=316 | Type of the condition.
  status string #2 required one=True,False,Unknown | Status of the condition: True, False or Unknown.
  observedGeneration int64 #3 | metadata.generation that the controller saw.
  lastTransitionTime time #4 required | Time of the last change of status.
  reason string #5 required | Reason for the status, in one word.
  message string #6 required | Explanation for people.
Preconditions | Conditions that must be true for a deletion.
  resourceVersion string #2 | Resource version of the object.
  uid string #1 | UID of the object.
DeleteOptions | Options of a deletion.
  dryRun []string #5 atomic | All: the server checks the request and changes nothing.
  gracePeriodSeconds int64 #1 | Seconds before the deletion of a Pod.
  orphanDependents bool #3 | Deprecated: use propagationPolicy.
  preconditions Preconditions #2 | Conditions that must be true for the deletion.
  propagationPolicy string #4 | Deletion of dependents: Background, Foreground or Orphan.
"""

META: Final[dict[str, Type]] = read_types(_TABLE, PREFIX, {})
