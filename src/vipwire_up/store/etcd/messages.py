"""The messages of etcd's gRPC API, version 3, that the store uses, with their field numbers.

One line for each message, as in etcd's rpc.proto: `name:number:type`, with `*` for a repeated field. Only used fields
are listed. Presence is explicit (proto2), because etcd's oneofs distinguish zero from unset: a comparison with
revision 0 asks whether a key is missing.
"""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE: Final = "vipwire.etcd"
_MESSAGES: Final = """
KeyValue key:1:bytes create_revision:2:int64 mod_revision:3:int64 version:4:int64 value:5:bytes lease:6:int64
Event type:1:int32 kv:2:KeyValue prev_kv:3:KeyValue
ResponseHeader cluster_id:1:uint64 member_id:2:uint64 revision:3:int64 raft_term:4:uint64
RangeRequest key:1:bytes range_end:2:bytes limit:3:int64 revision:4:int64 serializable:7:bool
RangeResponse header:1:ResponseHeader kvs:2:*KeyValue more:3:bool count:4:int64
PutRequest key:1:bytes value:2:bytes lease:3:int64
PutResponse header:1:ResponseHeader
DeleteRangeRequest key:1:bytes range_end:2:bytes
DeleteRangeResponse header:1:ResponseHeader deleted:2:int64
RequestOp request_range:1:RangeRequest request_put:2:PutRequest request_delete_range:3:DeleteRangeRequest
ResponseOp response_range:1:RangeResponse response_put:2:PutResponse response_delete_range:3:DeleteRangeResponse
Compare result:1:int32 target:2:int32 key:3:bytes version:4:int64 create_revision:5:int64 mod_revision:6:int64 \
value:7:bytes
TxnRequest compare:1:*Compare success:2:*RequestOp failure:3:*RequestOp
TxnResponse header:1:ResponseHeader succeeded:2:bool responses:3:*ResponseOp
CompactionRequest revision:1:int64 physical:2:bool
CompactionResponse header:1:ResponseHeader
WatchCreateRequest key:1:bytes range_end:2:bytes start_revision:3:int64 progress_notify:4:bool
WatchRequest create_request:1:WatchCreateRequest
WatchResponse header:1:ResponseHeader watch_id:2:int64 created:3:bool canceled:4:bool compact_revision:5:int64 \
cancel_reason:6:string events:11:*Event
LeaseGrantRequest TTL:1:int64 ID:2:int64
LeaseGrantResponse header:1:ResponseHeader ID:2:int64 TTL:3:int64 error:4:string
AuthenticateRequest name:1:string password:2:string
AuthenticateResponse header:1:ResponseHeader token:2:string
"""
_TYPES: Final = {
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint64": descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
}


def _build_messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="vipwire/etcd.proto", package=_PACKAGE, syntax="proto2")
    for line in _MESSAGES.strip().splitlines():
        name, *fields = line.split()
        message = file.message_type.add(name=name)
        for text in fields:
            field, number, kind = text.split(":")
            added = message.field.add(name=field, number=int(number))
            repeated, kind = kind.startswith("*"), kind.removeprefix("*")
            added.label = added.LABEL_REPEATED if repeated else added.LABEL_OPTIONAL
            if kind in _TYPES:
                added.type = _TYPES[kind]
            else:
                added.type, added.type_name = added.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (f"{_PACKAGE}.{line.split()[0]}" for line in _MESSAGES.strip().splitlines())
    return {
        name.rpartition(".")[2]: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in found
    }


MESSAGES: Final = _build_messages()
"""The classes, built at run time: mypy does not know their fields."""
EQUAL: Final = 0
MOD_REVISION: Final = 2
VALUE: Final = 3
DELETED: Final = 1
