"""The types that every kind shares: ObjectMeta and what stands in it, and label selectors."""

from typing import Final

from vipwire.cluster.api.schema import Type, read_types

PREFIX: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"

_TABLE: Final = """
OwnerReference | Points to the object that this one belongs to: it is deleted with its owner.
  apiVersion string required | API version of the owner.
  kind string required | Kind of the owner.
  name string required | Name of the owner.
  uid string required | UID of the owner.
  controller bool | Whether this owner controls the object; at most one does.
  blockOwnerDeletion bool | Whether a foreground deletion of the owner waits for this object.
ManagedFieldsEntry | Which fields one writer has set.
  manager string | Who writes.
  operation string | How the fields came to be the manager's: Apply or Update.
  apiVersion string | The version that the fields are named in.
  time time | When the manager last wrote.
  fieldsType string | The form of fieldsV1; always FieldsV1.
  fieldsV1 any | The fields: f:name, k:{keys} and v:value, nested.
  subresource string | The subresource that was written to, if any.
ObjectMeta | What every object has besides its own content.
  name string | Unique among the objects of its kind in its namespace. Cannot be changed.
  generateName string | Beginning of a name that the server makes unique, where name is not given.
  namespace string | The namespace that the object is in. Cannot be changed.
  uid string | Unique in space and time; set by the server.
  resourceVersion string | Number of the object's last change. An update that carries it fails if it is not the last.
  generation int64 | Counts changes of what is wanted; set by the server.
  creationTimestamp time | When the object was created; set by the server.
  deletionTimestamp time | When the object will be or was to be gone; set by the server at deletion.
  deletionGracePeriodSeconds int64 | Seconds from deletion to removal; set by the server.
  labels {}string | Names and values that objects are selected by.
  annotations {}string | Names and values that tools keep with the object; not for selection.
  ownerReferences []OwnerReference key=uid merge=uid | The objects that this one depends on.
  finalizers []string set merge=- | What has to be done before the object may go; it goes when this is empty.
  managedFields []ManagedFieldsEntry atomic | Which writer has set which fields; kept by the server.
  selfLink string | Not used any more.
LabelSelectorRequirement | A condition on one label.
  key string required | The label.
  operator string required one=In,NotIn,Exists,DoesNotExist | How it is compared.
  values []string atomic | The values of In and NotIn.
LabelSelector | Selects objects by their labels. An empty one selects all.
  matchLabels {}string | Labels that have to be as given.
  matchExpressions []LabelSelectorRequirement atomic | Conditions that must all hold.
Condition | One aspect of an object's state.
  type string required max=316 | The aspect.
  status string required one=True,False,Unknown | Whether it holds.
  observedGeneration int64 | The generation that this was found out about.
  lastTransitionTime time required | When the status last changed.
  reason string required | One word about why.
  message string required | A sentence about why.
"""

META: Final[dict[str, Type]] = read_types(_TABLE, PREFIX, {})
