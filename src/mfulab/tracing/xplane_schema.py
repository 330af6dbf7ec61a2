"""Protobuf messages of a JAX profile, of the fields that are read alone: no generated code, and no TensorFlow."""

import functools
import re
from typing import Any

# Of each message its fields: name=number, `*` where repeated, and the type: i(nt64), u(int64), d(ouble), b(ytes, text
# too) or a message. `|` marks members of a oneof called value.
_MESSAGES = {
    "XSpace": "planes=1*XPlane",
    "XPlane": "name=2b lines=3*XLine event_metadata=4*Kind stat_metadata=5*Name stats=6*XStat",
    "Kind": "key=1i value=2XEventMetadata",
    "Name": "key=1i value=2XStatMetadata",
    "XLine": "id=1i name=2b timestamp_ns=3i events=4*XEvent",
    "XEvent": "metadata_id=1i offset_ps=2i duration_ps=3i stats=4*XStat",
    "XStat": "metadata_id=1i double_value=2|d uint64_value=3|u int64_value=4|i str_value=5|b bytes_value=6|b"
    " ref_value=7|u",
    "XEventMetadata": "name=2b display_name=4b stats=5*XStat",
    "XStatMetadata": "name=2b",
    "HloProto": "hlo_module=1Module",
    "Module": "computations=3*Computation",
    "Computation": "instructions=2*Instruction id=5i",
    "Instruction": "name=1b opcode=2b shape=3Shape convolution_dimension_numbers=16Convolution custom_call_target=28b"
    " dot_dimension_numbers=30Dot id=35i operand_ids=36*i called_computation_ids=38*i backend_config=43b",
    "Shape": "element_type=2i dimensions=3*i tuple_shapes=4*Shape",
    "Dot": "lhs_contracting_dimensions=1*i",
    "Convolution": "kernel_output_feature_dimension=4i",
}
# XLA's PrimitiveType → its name and bytes.
XLA_ELEMENTS = {
    1: ("pred", 1), 2: ("s8", 1), 3: ("s16", 2), 4: ("s32", 4), 5: ("s64", 8), 6: ("u8", 1), 7: ("u16", 2),
    8: ("u32", 4), 9: ("u64", 8), 10: ("f16", 2), 11: ("f32", 4), 12: ("f64", 8), 16: ("bf16", 2),
    19: ("f8e5m2", 1), 20: ("f8e4m3fn", 1), 24: ("f8e5m2fnuz", 1), 25: ("f8e4m3fnuz", 1),
}  # fmt: skip


def message(name: str) -> Any:
    """An empty message of this name. Raises ImportError without protobuf."""
    return _classes()[name]()


@functools.cache
def _classes() -> dict[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    types = {"i": field.TYPE_INT64, "u": field.TYPE_UINT64, "d": field.TYPE_DOUBLE, "b": field.TYPE_BYTES}
    file = descriptor_pb2.FileDescriptorProto(name="xplane", package="xplane", syntax="proto2")
    for owner, fields in _MESSAGES.items():
        declared = file.message_type.add(name=owner)
        for text in fields.split():
            name, number, sign, kind = re.fullmatch(r"(\w+)=(\d+)([*|]?)(\w+)", text).groups()  # type: ignore[union-attr]
            one = declared.field.add(name=name, number=int(number), label=3 if sign == "*" else 1)
            if kind in types:
                one.type = types[kind]
            else:
                one.type, one.type_name = field.TYPE_MESSAGE, f".xplane.{kind}"
            if sign == "|":
                if not declared.oneof_decl:
                    declared.oneof_decl.add(name="value")
                one.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        owner: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"xplane.{owner}")) for owner in _MESSAGES
    }
