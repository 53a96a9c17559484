"""The types that all kinds share: ObjectMeta and its parts, and label selectors."""

from typing import Final

from vipwire_up.api.objects.schema import Type, read_types

PREFIX: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"

_TABLE: Final = """
OwnerReference | Points to the object that this one belongs to: it is deleted with its owner.
  apiVersion string #5 required | API version of the owner.
  kind string #1 required | Kind of the owner.
  name string #3 required | Name of the owner.
  uid string #4 required | UID of the owner.
  controller bool #6 | Whether this owner controls the object; at most one does.
  blockOwnerDeletion bool #7 | Whether a foreground deletion of the owner waits for this object.
ManagedFieldsEntry | Which fields one writer has set.
  manager string #1 | Who writes.
  operation string #2 | How the fields came to be the manager's: Apply or Update.
  apiVersion string #3 | The version that the fields are named in.
  time time #4 | When the manager last wrote.
  fieldsType string #6 | The form of fieldsV1; always FieldsV1.
  fieldsV1 any #7 | The fields: f:name, k:{keys} and v:value, nested.
  subresource string #8 | The subresource that was written to, if any.
ObjectMeta | What every object has besides its own content.
  name string #1 | Unique among the objects of its kind in its namespace. Cannot be changed.
  generateName string #2 | Beginning of a name that the server makes unique, where name is not given.
  namespace string #3 | The namespace that the object is in. Cannot be changed.
  uid string #5 | Unique in space and time; set by the server.
  resourceVersion string #6 | Number of the object's last change. An update with an older one fails.
  generation int64 #7 | Counts changes of what is wanted; set by the server.
  creationTimestamp time #8 | When the object was created; set by the server.
  deletionTimestamp time #9 | When the object will be or was to be gone; set by the server at deletion.
  deletionGracePeriodSeconds int64 #10 | Seconds from deletion to removal; set by the server.
  labels {}string #11 | Names and values that objects are selected by.
  annotations {}string #12 | Names and values that tools keep with the object; not for selection.
  ownerReferences []OwnerReference #13 key=uid merge=uid | The objects that this one depends on.
  finalizers []string #14 set merge=- | What has to be done before the object may go; it goes when this is empty.
  managedFields []ManagedFieldsEntry #17 atomic | Which writer has set which fields; kept by the server.
  selfLink string #4 | Not used any more.
LabelSelectorRequirement | A condition on one label.
  key string #1 required | The label.
  operator string #2 required one=In,NotIn,Exists,DoesNotExist | How it is compared.
  values []string #3 atomic | The values of In and NotIn.
LabelSelector | Selects objects by their labels. An empty one selects all.
  matchLabels {}string #1 | Labels that have to be as given.
  matchExpressions []LabelSelectorRequirement #2 atomic | Conditions that must all hold.
Condition | One aspect of an object's state.
  type string #1 required max=316 | The aspect.
  status string #2 required one=True,False,Unknown | Whether it holds.
  observedGeneration int64 #3 | The generation that this was found out about.
  lastTransitionTime time #4 required | When the status last changed.
  reason string #5 required | One word about why.
  message string #6 required | A sentence about why.
Preconditions | What must hold for a deletion.
  resourceVersion string #2 | The object's last change.
  uid string #1 | The object's UID.
DeleteOptions | How an object is deleted.
  dryRun []string #5 atomic | All: nothing is done.
  gracePeriodSeconds int64 #1 | Seconds that a Pod has.
  orphanDependents bool #3 | Old form of propagationPolicy.
  preconditions Preconditions #2 | What must hold.
  propagationPolicy string #4 | What becomes of dependents: Background, Foreground or Orphan.
"""

META: Final[dict[str, Type]] = read_types(_TABLE, PREFIX, {})
