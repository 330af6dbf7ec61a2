"""Builds protobuf classes with only the fields that are read, without files made by `protoc`."""

import re
from collections.abc import Mapping

from mfulab.core.parts import Content


def classes(package: str, messages: Mapping[str, str]) -> Content:
    """Builds a class for each message. A message's text lists its fields as name=number, then `*`
    if repeated, then the type. Types are i (int64), u (uint64), d (double), b (bytes or text), or a
    message. `|` marks the members of a oneof called value. Raises ImportError if protobuf is not
    installed."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    types = {
        "i": field.TYPE_INT64,
        "u": field.TYPE_UINT64,
        "d": field.TYPE_DOUBLE,
        "b": field.TYPE_BYTES,
    }
    file = descriptor_pb2.FileDescriptorProto(name=package, package=package, syntax="proto2")
    for owner, fields in messages.items():
        declared = file.message_type.add(name=owner)
        for text in fields.split():
            name, number, sign, kind = re.fullmatch(r"(\w+)=(\d+)([*|]?)(\w+)", text).groups()  # type: ignore[union-attr]
            entry = declared.field.add(name=name, number=int(number), label=3 if sign == "*" else 1)
            if kind in types:
                entry.type = types[kind]
            else:
                entry.type = field.TYPE_MESSAGE
                entry.type_name = f".{package}.{kind}"
            if sign == "|":
                if not declared.oneof_decl:
                    declared.oneof_decl.add(name="value")
                entry.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = {}
    for owner in messages:
        descriptor = pool.FindMessageTypeByName(f"{package}.{owner}")
        found[owner] = message_factory.GetMessageClass(descriptor)
    return found
