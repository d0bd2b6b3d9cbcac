"""Small hostile files of torch.save: {name: bytes}, and what a reader may do with them.

A file of the name ok_* is good. Every other one must be refused, but for those in MAY_READ. Those of the name
exec_* create the file EXECUTED in the current folder when a reader executes them.
"""
import io
import struct
import warnings
import zipfile

P2, P4, P5 = b"\x80\x02", b"\x80\x04", b"\x80\x05"
MARKER = "EXECUTED"
CODE = "open('%s','w')" % MARKER
DATA = {"data/0": struct.pack("<4f", 1, 2, 3, 4)}
MAY_READ = {"zip_crc", "exec_after_end", "pickle_twice", "exec_beside_a_tensor", "zip_paths", "pickle_shared_lists"}


def text(s):
    return b"X" + struct.pack("<I", len(s.encode())) + s.encode()


def name(module, member):
    return ("c%s\n%s\n" % (module, member)).encode()


def number(n):
    return b"J" + struct.pack("<i", n) if -2**31 <= n < 2**31 else b"\x8a\x08" + struct.pack("<q", n)


def numbers(values):
    return b"(" + b"".join(map(number, values)) + b"t"


def call(module, member, *args):
    return name(module, member) + b"(" + b"".join(args) + b"tR"


def tensor(key="0", numel=4, offset=0, size=(2, 2), stride=(2, 1), storage="FloatStorage", kind=None, meta=b""):
    persistent = b"(" + text("storage") + (kind or name("torch", storage)) + text(key) + text("cpu") + number(numel) + b"tQ"
    return call("torch._utils", "_rebuild_tensor_v2", persistent, number(offset), numbers(size), numbers(stride),
                b"\x89", call("collections", "OrderedDict"), meta)


def untyped(dtype, numel=4, size=(4,), stride=(1,)):
    """A tensor of a type that has no storage of its own: of the newer types of torch."""
    persistent = b"(" + text("storage") + name("torch.storage", "UntypedStorage") + text("0") + text("cpu") + number(numel) + b"tQ"
    return call("torch._utils", "_rebuild_tensor_v3", persistent, number(0), numbers(size), numbers(stride), b"\x89",
                call("collections", "OrderedDict"), dtype)


def weight(value):
    return P2 + b"}" + text("model.norm.weight") + value + b"s."


def archive(pickled, members=None, top="archive", method=zipfile.ZIP_STORED, order="little"):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as z:
        for key, value in {"data.pkl": pickled, "byteorder": order.encode(), **(DATA if members is None else members)}.items():
            path = key if key[0] in "/." else top + "/" + key
            z.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), value, method)
    return out.getvalue()


def executing():
    run = call("builtins", "eval", text(CODE))
    return {
        "eval": weight(run),
        "python2": weight(call("__builtin__", "eval", text(CODE))),
        "system": weight(call("os", "system", text("touch " + MARKER))),
        "stack_global": P4 + b"}\x8c\x01w\x8c\x08builtins\x8c\x04eval\x93" + text(CODE) + b"\x85Rs.",
        "from_memo": P4 + b"}\x8c\x01w\x8c\x08builtins\x94\x8c\x04eval\x9400h\x00h\x01\x93" + text(CODE) + b"\x85Rs.",
        "inst": weight(b"(" + text(CODE) + b"ibuiltins\neval\n"),
        "obj": weight(b"(" + name("builtins", "eval") + text(CODE) + b"o"),
        "newobj_ex": P4 + b"}" + text("w") + name("subprocess", "Popen") + text("touch " + MARKER) +
                     b"\x85}" + text("shell") + b"\x88s\x92s.",
        "setstate": weight(name("argparse", "Namespace") + b")\x81}" + text("__setstate__") +
                           name("builtins", "eval") + b"sb" + text(CODE) + b"b"),
        "getattr": weight(call("builtins", "getattr", call("builtins", "__import__", text("os")), text("system")) +
                          b"(" + text("touch " + MARKER) + b"tR"),
        "storage_type": weight(tensor(kind=run)),
        "extension": weight(b"\x82\x01)R"),
        "after_end": weight(tensor()) + weight(run),
        "beside_a_tensor": P2 + b"}(" + text("model.norm.weight") + tensor() + text("args") + run + b"u.",
        "dotted": P4 + b"}" + text("w") + text("torch") + text("serialization.os.system") + b"\x93" +
                  text("touch " + MARKER) + b"\x85Rs.",
    }


def pickles():
    shared = b"]q\x00" + b"".join(b"](" + bytes([104, i - 1]) * 2 + b"eq" + bytes([i]) for i in range(1, 31))
    return {
        "string_4g": P2 + b"X\xff\xff\xff\xffabc.", "string_2e63": P4 + b"\x8d" + b"\xff" * 7 + b"\x7fabc.",
        "bytes_wrap": P4 + b"\x8e" + b"\xff" * 8 + b"abc.", "bytearray_1t": P5 + b"\x96" + struct.pack("<Q", 1 << 40) + b".",
        "negative_long": P2 + b"\x8b\xff\xff\xff\xff.", "negative_string": P2 + b"T\xff\xff\xff\xffabc.",
        "wide_long": weight(b"\x8a\xff" + b"\x7f" * 255), "int_text": weight(b"I" + b"9" * 30 + b"\n"),
        "int_letters": weight(b"Iabc\n"), "frame": P4 + b"\x95" + struct.pack("<Q", 1 << 50) + b"}.",
        "memo_missing": P2 + b"h\x09.", "memo_2e32": P2 + b"}r\xff\xff\xff\xffj\xff\xff\xff\xff0.",
        "memo_text": P2 + b"}p4294967295000\n.", "memo_below_zero": P2 + b"}p-1\n.", "pop_empty": P2 + b"0000.",
        "nothing": P2 + b".", "no_end": P2 + b"}" + text("w"), "no_bytes": b"", "no_mark": P2 + b"]e.",
        "odd_items": P2 + b"}(" + text("a") + b"u.", "item_of_list": P2 + b"]" + text("a") + text("b") + b"s.",
        "list_in_itself": P2 + b"]q\x00h\x00a.", "dict_in_itself": P2 + b"}q\x00" + text("me") + b"h\x00s.",
        "lists_in_each_other": P2 + b"]q\x00]q\x01h\x00ah\x00h\x01a.",
        "deep_lists": P2 + b"]" * 20000 + b"a" * 19999 + b".", "deep_tuples": P2 + b")" + b"\x85" * 20000 + b".",
        "deep_calls": P2 + name("a", "b") + b")R" + b"\x85R" * 3 + b".",
        "marks": P2 + b"(" * 20000 + b".", "shared_lists": P2 + shared + b"b" * 30 + b".", "unknown": P2 + b"\xfe.",
        "protocol": b"\x80\xff}.", "buffer": P5 + b"\x97.", "long_name": P2 + b"c" + b"a" * 3000,
        "twice": P2 + b"}(" + (text("model.norm.weight") + tensor()) * 2 + b"u.",
        "zero_in_name": P2 + b"}" + text("weight\0x") + tensor() + b"s.",
        "not_utf8": P2 + b"}X\x02\x00\x00\x00\xff\xfe" + tensor() + b"s.",
        "control_in_name": P2 + b"}" + text("\x1b[2J\x07weight") + tensor() + b"s.",
        "persistent_text": P2 + b"Pname\n.",
    }


def tensors():
    wrong = {
        "past_storage": {"size": (1 << 20,), "stride": (1,)}, "offset": {"offset": 1 << 40},
        "negative_offset": {"offset": -4}, "negative_size": {"size": (-2, 2)},
        "negative_stride": {"offset": 3, "size": (4,), "stride": (-1,)},
        "overflow": {"size": (1 << 32, 1 << 32), "stride": (1, 1)}, "stride": {"size": (3,), "stride": (1 << 62,)},
        "stride_zero": {"size": (1 << 40,), "stride": (0,)}, "overlapping": {"size": (3, 2), "stride": (1, 1)},
        "no_stride": {"stride": (1,)}, "axes": {"size": (1,) * 70, "stride": (1,) * 70},
        "numel": {"numel": 1 << 40, "size": (1 << 40,), "stride": (1,)}, "no_member": {"key": "7"},
        "path": {"key": "../data.pkl"}, "storage": {"storage": "EvilStorage"},
        "conjugate": {"meta": b"}" + text("conj") + b"\x88s"},
    }
    return {**{key: weight(tensor(**values)) for key, values in wrong.items()},
            "untyped_past_storage": weight(untyped(name("torch", "new"), 16, (17,))),
            "untyped_without_type": weight(untyped(text("new"), 16)),
            "untyped_of_another_module": weight(untyped(name("os", "new"), 16))}


def archives():
    good = archive(weight(tensor()))
    end = good.rfind(b"PK\x05\x06")
    entry = good.rfind(b"PK\x01\x02", 0, good.rfind(b"archive/data/0"))
    twice = io.BytesIO()
    with zipfile.ZipFile(twice, "w") as z, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for value in (weight(tensor()), weight(call("builtins", "eval", text(CODE)))):
            z.writestr(zipfile.ZipInfo("archive/data.pkl", (1980, 1, 1, 0, 0, 0)), value)

    def put(at, data):
        return good[:at] + data + good[at + len(data):]

    return {
        "paths": archive(weight(tensor()), {**DATA, "../../" + MARKER: b"x", "/nonexistent/" + MARKER: b"x"}),
        "deflated": archive(weight(tensor()), method=zipfile.ZIP_DEFLATED), "big_endian": archive(weight(tensor()), order="big"),
        "no_pickle": good.replace(b"data.pkl", b"data.pkk"), "cut": good[:-30], "empty": b"", "text": b"hello",
        "only_end": b"PK\x05\x06" + b"\0" * 18, "directory_past_end": put(end + 16, struct.pack("<I", 0xfffffff0)),
        "members": put(end + 8, b"\xff\xfe\xff\xfe"), "local_past_end": put(entry + 42, struct.pack("<I", 0x7ffffff0)),
        "size": put(entry + 20, struct.pack("<II", 1 << 30, 1 << 30)), "encrypted": put(entry + 8, b"\1"),
        "zip64": good[:end] + b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 1 << 60, 1 << 60, 1 << 63, (1 << 64) - 8) +
                 b"PK\x06\x07" + struct.pack("<IQI", 0, end, 1) + good[end:end + 8] + b"\xff" * 12 + good[end + 20:],
        "two_pickles": twice.getvalue(), "two_folders": archive(weight(tensor()), {**DATA, "./data.pkl": b"N."}),
        "crc": good.replace(DATA["data/0"], struct.pack("<4f", 1, 2, 3, 5)),
        "pickle_crc": good.replace(b"model.norm.weight", b"model.form.weight"),
        "local_name": good.replace(b"archive/data/0", b"archive/data/1", 1),
        "old_format": b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19." + P2 + b"M\xe9\x03." + P2 + b"}.",
    }


def cases():
    found = {
        "ok_plain": archive(weight(tensor())),
        "ok_view": archive(weight(tensor(size=(2,), stride=(2,), offset=1))),
        "ok_memo": archive(P2 + b"}(" + text("a") + tensor() + b"q\x07" + text("b") + b"h\x07u."),
    }
    for kind, files in (("exec", executing()), ("pickle", pickles()), ("tensor", tensors())):
        found.update({kind + "_" + key: archive(value) for key, value in files.items()})
    found.update({"zip_" + key: value for key, value in archives().items()})
    return found
