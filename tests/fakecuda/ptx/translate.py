#!/usr/bin/env python3
"""tests/fakecuda/ptx/translate.py - translate the PTX of kernels to C++ for the fake CUDA device.

    translate.py IN.ptx OUT.cc

Each kernel becomes a function that a thread of the device runs: registers are variables, labels are labels, and an instruction
is a call of its function in instructions.h. Only what nvcc makes of kernels/cuda is known; the first line that has something
else is an error, with its number. The lines of the C++ carry the numbers of the PTX, so that the device's messages name them.
"""
import bisect
import re
import sys

I, F = r"[su](?:16|32|64)", r"f(?:32|64)"
COMPARE = "eq|ne|lt|le|gt|ge"
UNORDERED = "equ|neu|ltu|leu|gtu|geu|num|nan"
# An instruction with one result: its name, the types of its operands, and the function (where the name has no parentheses) or
# the expression of its result. \1 is the first group of the name; bN are the bits of any type.
ARITHMETIC = [(re.compile(name + r"\Z"), types.split(), result) for name, types, result in [
    (r"(add|sub)\.[su](16|32|64)", r"b\2 b\2", r"\1"),
    (r"(add|sub|mul)(?:\.rn)?\.(f32|f64)", r"\2 \2", r"\1"),
    (r"add\.rz\.f32", "f32 f32", "add_rz"),
    (r"(add|sub)(c?)(\.cc)?\.[su]32", "b32 b32", "carry"),
    (r"mad(c?)\.(lo|hi)(\.cc)?\.u32", "u32 u32 b32", "mad_carry"),
    (r"mul\.lo\.[su](16|32|64)", r"b\1 b\1", "mul_lo"),
    (r"mul\.hi\.(u32|u64)", r"\1 \1", "mul_hi"),
    (r"mul\.wide\.([su](?:16|32))", r"\1 \1", "mul_wide"),
    (r"mad\.lo\.[su](32|64)", r"b\1 b\1 b\1", "mad_lo"),
    (rf"(div|rem)\.({I})", r"\2 \2", r"\1"),
    (r"div\.rn\.(f32|f64)", r"\1 \1", "div"),
    (r"(rcp|sqrt)\.rn\.(f32|f64)", r"\2", r"\1"),
    (r"fma\.rn\.(f32|f64)", r"\1 \1 \1", "fma"),
    (r"fma\.rm\.f32", "f32 f32 f32", "fma_rm"),
    (r"(abs|neg)\.(f32|f64)", r"\2", r"\1"),
    (r"neg\.s(16|32|64)", r"b\1", "neg"),
    (rf"(min|max)\.({I}|{F})", r"\2 \2", r"\1"),
    (r"(and|or|xor)\.(b16|b32|b64|pred)", r"\2 \2", r"bit_\1"),
    (r"not\.(b16|b32|b64|pred)", r"\1", "bit_not"),
    (r"shl\.(b16|b32|b64)", r"\1 u32", "shl"),
    (r"shr\.([bsu](?:16|32|64))", r"\1 u32", "shr"),
    (r"shf\.l\.wrap\.b32", "b32 b32 u32", "shf_l_wrap"),
    (r"bfi\.b32", "b32 b32 u32 u32", "bfi"),
    (r"prmt\.b32", "b32 b32 b32", "prmt"),
    (r"popc\.b32", "b32", "popc"),
    (r"clz\.b64", "b64", "clz"),
    (r"ex2\.approx\.ftz\.f32", "f32", "ex2_approx_ftz"),
    (r"rcp\.approx\.ftz\.f64", "f64", "rcp_approx_ftz"),
    (r"selp\.[bsuf](16|32|64)", r"b\1 b\1 pred", "selp"),
    (r"setp\.(eq|ne)\.b(16|32|64)", r"u\2 u\2", r"setp_\1"),
    (rf"setp\.({COMPARE})\.({I})", r"\2 \2", r"setp_\1"),
    (rf"setp\.({COMPARE}|{UNORDERED})\.({F})", r"\2 \2", r"setp_\1"),
    (rf"cvt\.([su](?:8|16|32|64))\.([su](?:8|16|32|64))", r"\2", r"(\1)({})"),
    (rf"cvt\.rn\.({F})\.({I})", r"\2", r"(\1)({})"),
    (r"cvt\.f64\.f32", "f32", "(f64)({})"),
    (r"cvt\.rn\.f32\.f64", "f64", "to_f32"),
    (r"cvt\.rn\.bf16x2\.f32", "f32 f32", "to_bf16x2"),
    (r"cvt\.sat\.f32\.f32", "f32", "saturated"),
    (r"cvt\.rni\.s32\.f64", "f64", "to_s32_rni"),
    (r"cvt\.rzi\.f64\.f64", "f64", "std::trunc({})"),
    (r"mov\.(?:[bsuf](16|32|64))", r"b\1", "{}"),
    (r"mov\.pred", "pred", "{}"),
    (r"cvta(?:\.to)?\.(?:global|local)\.u64", "b64", "{}"),  # all spaces but .shared have the addresses of the generic one
]]
SPACES = {"": "GENERIC", ".global": "GLOBAL", ".shared": "SHARED", ".param": "PARAM", ".local": "OWN"}
MOVE = re.compile(r"(ld|st)(\.global|\.shared|\.param|\.local|)(?:\.nc|\.wb)?(?:\.v([24]))?\.([bsuf](?:8|16|32|64))\Z")
SPECIAL = {f"%{name}.{axis}": f"(u32)fakecuda_at.{field}.{axis}" for axis in "xyz" for name, field in
           [("tid", "thread"), ("ntid", "block_dim"), ("ctaid", "block"), ("nctaid", "grid_dim")]}
SIZES = {"pred": "pred", "8": "b8", "16": "b16", "32": "b32", "64": "b64"}


class Unknown(Exception):
    """Something that the translator does not know; its position in the text."""

    def __init__(self, at, what):
        super().__init__(what)
        self.at = at


def split_operands(text):
    """Split at commas that are not in braces."""
    return [x.strip() for x in re.findall(r"(?:\{[^}]*\}|[^,{])+", text)]


def variable(register):
    return "v_" + register.lstrip("%")


class Function:
    """The body of one .entry or .func, as lines of C++."""

    def __init__(self, params, is_entry, shared):
        self.params, self.is_entry = params, is_entry  # params: {name: offset}; each param of a .func is an array
        self.shared, self.own = set(shared), set()     # names of variables
        self.local = None                              # the name of the depot
        self.declared = set()                          # registers
        self.lines, self.top = [], []
        self.depth = 0
        self.at = 0

    # ---- operands ----

    def value(self, x):
        """An operand as C++: bits of some width."""
        if x in SPECIAL:
            return SPECIAL[x]
        if x.lstrip("!") in self.declared:
            return "!" * x.startswith("!") + variable(x.lstrip("!"))
        if m := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", x):
            return f"0x{m[1]}u"
        if m := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", x):
            return f"0x{m[1]}ull"
        if re.fullmatch(r"(?:-?\d+|0x[0-9a-fA-F]+)U?", x):
            n = int(x.rstrip("U"), 0) % 2**64
            return f"0x{n:x}ull"
        return self.symbol(x)

    def symbol(self, x):
        if x in self.params:
            return f"((u64)params + {self.params[x]})" if self.is_entry else f"(u64){x}"
        if x in self.shared:
            return f"ptx_shared_address({x})"
        if x in self.own or re.fullmatch(r"__cudart_\w+", x):
            return f"(u64){x}"
        raise Unknown(self.at, f"unknown operand {x}")

    def operand(self, kind, x):
        if kind == "pred" and x in ("0", "1", "-1"):
            return "true" if x != "0" else "false"
        return f"as<{kind}>({self.value(x)})"

    def address(self, x):
        m = re.fullmatch(r"\[([%$\w]+)\s*(?:\+\s*(-?\d+))?\]", x)
        if not m:
            raise Unknown(self.at, f"unknown address {x}")
        return f"{self.value(m[1])} + {int(m[2] or 0) % 2**64}ull" if m[2] else self.value(m[1])

    @staticmethod
    def listed(x):
        return split_operands(x[1:-1]) if x.startswith("{") else [x]

    # ---- instructions ----

    def assign(self, register, value):
        return "" if register == "_" else f"set({self.value(register)}, {value});"

    def arithmetic(self, name, operands):
        for pattern, types, result in ARITHMETIC:
            m = pattern.match(name)
            if not m:
                continue
            if len(operands) != len(types) + 1:
                raise Unknown(self.at, f"{name} with {len(operands)} operands")
            if result == "carry":
                return self.carry(m, "add_carry" if m[1] == "add" else "sub_borrow", operands)
            if result == "mad_carry":
                product = f"mul_{m[2]}({self.operand('u32', operands[1])}, {self.operand('u32', operands[2])})"
                return self.assign(operands[0], f"add_carry({product}, {self.operand('b32', operands[3])}, "
                                   f"{'carry' if m[1] else 'false'}, {'&carry' if m[3] else 'nullptr'})")
            values = ", ".join(self.operand(m.expand(t), x) for t, x in zip(types, operands[1:]))
            result = m.expand(result)
            return self.assign(operands[0], result.format(values) if "{}" in result else f"{result}({values})")
        return None

    def carry(self, m, function, operands):
        a, b = (self.operand("b32", x) for x in operands[1:])
        carries = f"{'carry' if m[2] else 'false'}, {'&carry' if m[3] else 'nullptr'}"
        return self.assign(operands[0], f"{function}({a}, {b}, {carries})")

    def move(self, m, operands):
        is_load, space, n, kind = m[1] == "ld", m[2], int(m[3] or 1), m[4]
        where, registers = operands if not is_load else operands[::-1]
        registers, size = self.listed(registers), n * int(kind[1:]) // 8
        if len(registers) != n:
            raise Unknown(self.at, f"{n} elements and {len(registers)} registers")
        base = where[1:].split("+")[0].rstrip("]")
        own = space == ".param" and (base in self.own or not self.is_entry)
        name = "OWN" if own else SPACES[space]
        check = f"ptx_local({self.address(where)}, {size}, {self.local}, sizeof {self.local}); " if space == ".local" else ""
        if is_load:
            return (f"{{ {check}const auto x = load<{name}, {kind}, {n}>({self.address(where)}); " +
                    " ".join(self.assign(r, f"x.x[{i}]") for i, r in enumerate(registers)) + " }")
        if space == ".param" and not own:
            raise Unknown(self.at, "a store to the parameters of a kernel")
        values = ", ".join(self.operand(kind, r) for r in registers)
        return f"{check}store<{name}, {kind}, {n}>({self.address(where)}, {{ {{ {values} }} }});" if not check else \
            f"{{ {check}store<{name}, {kind}, {n}>({self.address(where)}, {{ {{ {values} }} }}); }}"

    def vector_mov(self, name, operands):
        """mov between a register and its parts."""
        width = int(name[5:])
        half = f"b{width // 2}"
        to, source = operands
        if source.startswith("{"):
            a, b = self.listed(source)
            return self.assign(to, f"(b{width})joined({self.operand(half, a)}, {self.operand(half, b)})")
        whole = self.operand(f"b{width}", source)
        parts = self.listed(to)
        if len(parts) != 2:
            raise Unknown(self.at, f"{name} of {len(parts)} parts")
        return f"{{ const b{width} x = {whole}; " + " ".join(
            self.assign(r, f"part<{half}>(x, {i})") for i, r in enumerate(parts)) + " }"

    def of_warp(self, name, operands):
        """Instructions that several threads execute together, and asynchronous copies."""
        value, u32 = self.value, lambda x: self.operand("u32", x)
        if m := re.fullmatch(r"shfl\.sync\.(up|bfly|idx)\.b32", name):
            to, *within = [x.strip() for x in operands[0].split("|")]
            return self.assign(to, f"shfl<{m[1].upper()}>({', '.join(map(u32, operands[1:]))}, "
                               f"{'&' + value(within[0]) if within else 'nullptr'})")
        if name == "vote.sync.any.pred":
            return self.assign(operands[0], f"fakecuda_warp_ballot({u32(operands[2])}, {value(operands[1])}) != 0")
        if name == "vote.sync.ballot.b32":
            return self.assign(operands[0], f"(u32)fakecuda_warp_ballot({u32(operands[2])}, {value(operands[1])})")
        if name == "bar.warp.sync":
            return f"fakecuda_warp_barrier({u32(operands[0])});"
        if name == "bar.sync" and operands == ["0"]:
            return "(void)fakecuda_barrier(0);"
        if name == "bar.sync" and operands == ["1", "256"]:  # all threads of a block, see wgmma.cuh
            return "fakecuda_barrier_anywhere();"
        if name == "bar.red.or.pred" and operands[1] == "0":
            return self.assign(operands[0], f"fakecuda_barrier({value(operands[2])}) > 0")
        if m := re.fullmatch(r"cp\.async\.(?:cg|ca)\.shared\.global", name):
            to, source, n, *n_read = operands
            if "cg" in name and n != "16":
                raise Unknown(self.at, f"{name} of {n} bytes")
            return (f"fakecuda_cp_async(ptx_shared((u32)({self.address(to)})), (const void *)({self.address(source)}), {n}, "
                    f"(int){u32(n_read[0]) if n_read else n});")
        if name == "cp.async.commit_group":
            return "fakecuda_cp_async_commit();"
        if name == "cp.async.wait_group":
            return f"fakecuda_cp_async_wait({int(operands[0])});"
        if m := re.fullmatch(r"ldmatrix\.sync\.aligned\.m8n8\.x4(\.trans)?\.shared\.b16", name):
            return (f"{{ u32 to[4]; fakecuda_ldmatrix_x4(to, (const uint16_t *)ptx_shared((u32)({self.address(operands[1])})), "
                    f"{'true' if m[1] else 'false'}); " +
                    " ".join(self.assign(r, f"to[{i}]") for i, r in enumerate(self.listed(operands[0]))) + " }")
        if name == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32":
            a, b, c = ([self.operand(kind, r) for r in self.listed(x)] for kind, x in zip(("b32", "b32", "f32"), operands[1:]))
            if (len(a), len(b), len(c)) != (4, 2, 4):
                raise Unknown(self.at, f"{name} with fragments of {len(a)}, {len(b)} and {len(c)} registers")
            a, b, c = (f"{{ {', '.join(x)} }}" for x in (a, b, c))
            return (f"{{ const u32 a[] = {a}, b[] = {b}; const f32 c[] = {c}; f32 d[4]; mma(d, a, b, c); " +
                    " ".join(self.assign(r, f"d[{i}]") for i, r in enumerate(self.listed(operands[0]))) + " }")
        if m := re.fullmatch(r"wgmma\.(fence|commit_group|wait_group)\.sync\.aligned", name):
            return f"fakecuda_wgmma_{m[1].split('_')[0]}({int(operands[0]) if m[1] == 'wait_group' else ''});"
        if name == "fence.proxy.async.shared::cta":
            return "fakecuda_fence_proxy_async();"
        if name == "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16":
            return self.of_warpgroup(name, operands)
        if m := re.fullmatch(r"atom\.global\.(?:(add)\.u|(xor)\.b)(32|64)", name):
            return self.assign(operands[0], f"atom_{m[1] or 'bit_xor'}({self.address(operands[1])}, "
                               f"{self.operand('u' + m[3], operands[2])})")
        return None

    def of_warpgroup(self, name, operands):
        """A product of a warpgroup: A in registers or in shared memory, with other operands for each."""
        to, a, b, adds, *rest = operands
        registers, results = a.startswith("{"), self.listed(to)
        transposed = {("1", "1", "0", "0"): "false", ("1", "1", "0"): "false", ("1", "1", "1"): "true"}.get(tuple(rest))
        if len(results) != 32 or transposed is None or registers != (len(rest) == 3):
            raise Unknown(self.at, f"{name} with {len(results)} results and {', '.join(rest)}")
        d = ", ".join(self.operand("f32", r) for r in results)
        words = ", ".join(self.operand("b32", r) for r in self.listed(a)) if registers else "0"
        return (f"{{ f32 d[] = {{ {d} }}; const u32 a[] = {{ {words} }}; "
                f"fakecuda_wgmma_now(d, {'a' if registers else '((void)a, nullptr)'}, {'0' if registers else self.operand('b64', a)}, "
                f"{self.operand('b64', b)}, {self.operand('pred', adds)}, {transposed}); " +
                " ".join(self.assign(r, f"d[{i}]") for i, r in enumerate(results)) + " }")

    def control(self, name, text):
        if name in ("bra", "bra.uni"):
            return f"goto {text.strip()[1:]};"
        if name == "ret":
            return "return;"
        if name == "call.uni":
            m = re.fullmatch(r"\s*(?:\((\w+)\),)?\s*(\w+)\s*,\s*\(([^)]*)\)\s*", text)
            if not m:
                raise Unknown(self.at, f"unknown call{text}")
            return f"{m[2]}({', '.join(filter(None, [m[1], *split_operands(m[3])]))});"
        return None

    def instruction(self, text):
        m = re.fullmatch(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)(.*)", text, re.S)
        if not m:
            raise Unknown(self.at, f"unknown statement {text}")
        name, rest = m[3], m[4]
        done = self.control(name, rest)
        if done is None:
            operands = split_operands(rest)
            if name in ("mov.b32", "mov.b64") and "{" in rest:
                done = self.vector_mov(name, operands)
            elif move := MOVE.match(name):
                done = self.move(move, operands)
            else:
                done = self.arithmetic(name, operands)
                done = self.of_warp(name, operands) if done is None else done
        if done is None:
            raise Unknown(self.at, f"unknown instruction {name}")
        return f"if ({m[1]}{self.value(m[2])}) {done}" if m[2] else done

    # ---- declarations ----

    def registers(self, text):
        m = re.fullmatch(r"\.reg\s+\.(pred|[bsuf](8|16|32|64))\s+(.*)", text, re.S)
        if not m:
            raise Unknown(self.at, f"unknown declaration {text}")
        kind, names = SIZES[m[2] or "pred"], []
        for x in split_operands(m[3]):
            if r := re.fullmatch(r"%(\w+)<(\d+)>", x):
                names += [f"%{r[1]}{i}" for i in range(int(r[2]))]
            else:
                names.append(x)
        self.declared.update(names)
        names = [variable(x) for x in names]
        value = "true" if kind == "pred" else f"({kind})-1"
        if self.depth == 0:
            self.top += [f"{kind} {n} = {value};" for n in names]
        else:
            self.lines.append((self.at, f"{kind} {', '.join(names)};"))

    def declare(self, text):
        if text.startswith(".reg"):
            self.registers(text)
        elif m := re.fullmatch(r"\.(local|shared|param)\s+(?:\.align\s+(\d+)\s+)?\.b(\d+)\s+([$\w]+)(?:\[(\d+)\])?", text):
            size = int(m[3]) // 8
            array, align = f"char {m[4]}[{size * int(m[5] or 1)}];", f"alignas({m[2] or size}) "
            if m[1] == "shared":
                self.shared.add(m[4])
                self.top.append(align + "PTX_SHARED " + array)
                return
            self.own.add(m[4])
            if m[1] == "local":
                self.local = m[4]
                self.top.append(f"{align}{array} __builtin_memset({m[4]}, 0xff, sizeof {m[4]});")
            else:
                self.lines.append((self.at, align + array))
        elif not text.startswith(".pragma"):
            raise Unknown(self.at, f"unknown declaration {text}")

    def body(self, text, begin, end):
        """Translate text[begin:end], between the function's braces."""
        at = begin
        while True:
            at = re.compile(r"\s*").match(text, at).end()
            if at >= end:
                return
            self.at = at
            if text[at] in "{}":
                self.depth += 1 if text[at] == "{" else -1
                self.lines.append((at, text[at]))
                at += 1
            elif m := re.compile(r"\$(\w+):").match(text, at):
                self.lines.append((at, m[1] + ": ;"))
                at = m.end()
            else:
                stop = text.index(";", at)
                statement = text[at:stop].strip()
                if statement.startswith("."):
                    self.declare(statement)
                else:
                    self.lines.append((at, self.instruction(statement)))
                at = stop + 1


class Module:
    """One file of PTX."""

    def __init__(self, text, name):
        self.text, self.name = text, name
        self.out, self.kernels, self.shared = [], [], []
        self.ends = [m.start() for m in re.finditer("\n", text)]

    def number(self, at):
        return bisect.bisect_left(self.ends, at) + 1

    def params(self, text):
        """{name: offset} and the bytes of all, as C++ lays a struct's members out, without the padding of its end."""
        found, at = {}, 0
        for x in filter(None, (x.strip() for x in text.split(","))):
            m = re.fullmatch(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.[bsuf](\d+)\s+"
                             r"(?:\.ptr\s+(?:\.align\s+\d+\s+)?)?(\w+)(?:\[(\d+)\])?", x)
            if not m:
                raise Unknown(self.at, f"unknown parameter {x}")
            size = int(m[2]) // 8
            align = int(m[1] or size)
            at = (at + align - 1) // align * align
            found[m[3]] = at
            at += size * int(m[4] or 1)
        return found, at

    def function(self, head, begin, end):
        is_entry = head["kind"] == "entry"
        params, size = self.params(head["params"])
        result = {} if is_entry else self.params(head["result"] or "")[0]
        f = Function({**params, **result}, is_entry, self.shared)
        f.body(self.text, begin, end)
        if is_entry:
            threads = re.search(r"\.maxntid\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?", head["limits"])
            most = 1024 if not threads else int(threads[1]) * int(threads[2] or 1) * int(threads[3] or 1)
            self.kernels.append((head["name"], size, most))
            self.out += ["", f"extern \"C\" void {head['name']}();",
                         f"static void ptx{head['name']}(const fakecuda_call *call)", "{",
                         "char *const params = (char *)call->args;", "(void)params;"]
        else:
            self.out += ["", self.declaration(head), "{"]
        self.out += ["bool carry = false;", "(void)carry;", *f.top]
        line = 0
        for at, code in f.lines:
            if self.number(at) != line:
                line = self.number(at)
                self.out.append(f'#line {line} "{self.name}"')
            self.out.append(code)
        self.out.append("}")

    def declaration(self, head):
        names = [*self.params(head["result"] or "")[0], *self.params(head["params"])[0]]
        return f"static void {head['name']}({', '.join('char *' + n for n in names)})"

    def closing(self, at):
        depth = 0
        for m in re.compile(r"[{}]").finditer(self.text, at):
            depth += 1 if m[0] == "{" else -1
            if depth == 0:
                return m.start()
        raise Unknown(at, "a brace that is not closed")

    def translate(self):
        head = re.compile(r"(?:\.(?:visible|weak)\s+)*\.(?P<kind>entry|func)\s*(?:\((?P<result>[^)]*)\)\s*)?(?P<name>\w+)\s*"
                          r"\((?P<params>[^)]*)\)(?P<limits>[^{;]*)(?P<end>[{;])")
        data = re.compile(r"(?:\.visible\s+)?\.(shared|global)\s+\.align\s+(\d+)\s+\.b8\s+(\w+)\[(\d+)\]"
                          r"(?:\s*=\s*(\{[^}]*\}))?;")
        at = 0
        while True:
            self.at = at = re.compile(r"\s*").match(self.text, at).end()
            if at == len(self.text):
                return
            if m := re.compile(r"\.(?:version|target|address_size)\b[^\n]*").match(self.text, at):
                at = m.end()
            elif m := re.compile(r"\.extern\s+\.shared\s+\.align\s+(\d+)\s+\.b8\s+(\w+)\[\];").match(self.text, at):
                if int(m[1]) > 1024:
                    raise Unknown(at, f"dynamic shared memory at multiples of {m[1]}")
                self.shared.append(m[2])
                self.out.append(f"static void *const {m[2]} = fakecuda_dynamic_shared();")
                at = m.end()
            elif m := data.match(self.text, at):
                if m[1] == "shared":
                    self.shared.append(m[3])
                    self.out.append(f"alignas({m[2]}) PTX_SHARED char {m[3]}[{m[4]}];")
                elif m[5]:
                    self.out.append(f"alignas({m[2]}) PTX_CONSTANT unsigned char {m[3]}[{m[4]}] = {m[5]};")
                else:
                    raise Unknown(at, f"the variable {m[3]} without a value")
                at = m.end()
            elif m := head.match(self.text, at):
                if m["end"] == ";":
                    self.out.append(self.declaration(m) + ";")
                    at = m.end()
                else:
                    at = self.closing(m.end() - 1) + 1
                    self.function(m.groupdict(), m.end(), at - 1)
            else:
                raise Unknown(at, "unknown " + self.text[at:].split("\n")[0])

    def source(self):
        table = [f'{{ (const void *){n}, "{n}", ptx{n}, {size}, {threads} }},' for n, size, threads in self.kernels]
        end = ["static const translation all[] = {", *table, "};",
               "static const translations registered(all, sizeof all / sizeof *all);"] if table else []
        return "\n".join(['#include "tests/fakecuda/ptx/instructions.h"', "namespace ptx", "{", *self.out, "", *end, "}", ""])


def main():
    path, to = sys.argv[1:]
    with open(path, encoding="ascii") as f:
        text = re.sub(r"//[^\n]*", "", f.read())
    module = Module(text, path)
    try:
        module.translate()
    except Unknown as e:
        sys.exit(f"{path}:{module.number(e.at)}: translate: {e}")
    with open(to, "w", encoding="ascii") as f:
        f.write(module.source())


if __name__ == "__main__":
    main()
