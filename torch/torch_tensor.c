/*
 * torch/torch_tensor.c - see torch/torch_tensor.h. The calls that make tensors: torch/_utils.py,
 * torch/_tensor.py.
 */
#include "torch/torch_tensor.h"

#include <string.h>

/* Types by the name of their storage and of their dtype. */
static const struct torch_type {
    const char *storage, *dtype;
    enum dtype type; /* DTYPE_COUNT: not supported, but its elements have `bytes` */
    int bytes;
} types[] = {
    { "FloatStorage", "float32", DTYPE_F32, 4 },
    { "BFloat16Storage", "bfloat16", DTYPE_BF16, 2 },
    { "HalfStorage", "float16", DTYPE_F16, 2 },
    { "DoubleStorage", "float64", DTYPE_F64, 8 },
    { "LongStorage", "int64", DTYPE_I64, 8 },
    { "IntStorage", "int32", DTYPE_I32, 4 },
    { "ByteStorage", "uint8", DTYPE_U8, 1 },
    { "BoolStorage", "bool", DTYPE_COUNT, 1 },
    { "CharStorage", "int8", DTYPE_COUNT, 1 },
    { "ShortStorage", "int16", DTYPE_COUNT, 2 },
    { "ComplexFloatStorage", "complex64", DTYPE_COUNT, 8 },
    { "ComplexDoubleStorage", "complex128", DTYPE_COUNT, 16 },
    { NULL, "uint16", DTYPE_COUNT, 2 },
    { NULL, "uint32", DTYPE_COUNT, 4 },
    { NULL, "uint64", DTYPE_COUNT, 8 },
};

/* A type that is not in the table: of newer versions of torch, bits, or complex numbers. A byte is
 * the least that an element has. */
static const struct torch_type other = { NULL, NULL, DTYPE_COUNT, 1 };

/* What _rebuild_tensor_v2 and _rebuild_tensor_v3 are called with. */
struct rebuild {
    const struct pickle_value *storage, *offset, *size, *stride;
    const struct pickle_value *dtype;    /* v3 */
    const struct pickle_value *metadata; /* NULL: none */
    bool untyped;                        /* the storage counts bytes */
};

enum { WRAPPERS_MAX = 8 }; /* a parameter of a subclass of ... */

/* More than any file has, so that readers may multiply a length by a number of ranks: a tensor
 * without elements may claim any. */
#define LENGTH_MAX (INT64_C(1) << 42)

/* Unpack a call that makes a tensor from a storage. False: it is none. */
static bool unpack(struct rebuild *r, const struct pickle_value *callable,
                   const struct pickle_value *args)
{
    bool v3 = pickle_is_global(callable, "torch._utils", "_rebuild_tensor_v3");

    if (!v3 && !pickle_is_global(callable, "torch._utils", "_rebuild_tensor_v2"))
        return false;
    if (pickle_count(args) < (v3 ? 7 : 6))
        return false;
    *r = (struct rebuild){ .storage = pickle_item(args, 0),
                           .offset = pickle_item(args, 1),
                           .size = pickle_item(args, 2),
                           .stride = pickle_item(args, 3),
                           .dtype = v3 ? pickle_item(args, 6) : NULL,
                           .metadata = pickle_item(args, v3 ? 7 : 6),
                           .untyped = v3 };
    return true;
}

/* A parameter; with attributes, as Megatron-LM gives it, there is a fourth argument. */
static bool is_parameter(const struct pickle_value *v)
{
    return pickle_is_call(v, "torch._utils", "_rebuild_parameter") ||
           pickle_is_call(v, "torch._utils", "_rebuild_parameter_with_state");
}

/* The innermost call: a parameter and a subclass of Tensor contain the tensor that they wrap. */
static bool find_rebuild(struct rebuild *r, const struct pickle_value *v)
{
    for (int i = 0; i < WRAPPERS_MAX && pickle_is(v, PICKLE_OBJECT); i++) {
        if (unpack(r, v->object.callable, v->object.args))
            return true;
        if (pickle_is_call(v, "torch._tensor", "_rebuild_from_type_v2"))
            return pickle_is_global(pickle_item(v->object.args, 1), "torch", "Tensor") &&
                   unpack(r, pickle_item(v->object.args, 0), pickle_item(v->object.args, 2));
        if (!is_parameter(v))
            return false;
        v = pickle_item(v->object.args, 0);
    }
    return false;
}

bool torch_tensor_is(const struct pickle_value *v)
{
    struct rebuild r;

    return find_rebuild(&r, v);
}

bool torch_tensor_is_part(const struct pickle_value *v)
{
    static const char head[] = "torch.distributed.";
    const struct pickle_value *type;

    if (is_parameter(v))
        v = pickle_item(v->object.args, 0);
    if (!pickle_is_call(v, "torch._tensor", "_rebuild_from_type_v2"))
        return false;
    type = pickle_item(v->object.args, 1);
    return pickle_is(type, PICKLE_GLOBAL) &&
           strncmp(type->global.module, head, sizeof head - 1) == 0;
}

static const struct torch_type *find_type(const struct pickle_value *v, bool storage)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const char *name = storage ? types[i].storage : types[i].dtype;

        if (name && (pickle_is_global(v, "torch", name) ||
                     (storage && pickle_is_global(v, "torch.storage", name))))
            return &types[i];
    }
    return NULL;
}

/* The type of a tensor whose storage counts bytes; NULL: it has none. */
static const struct torch_type *find_dtype(const struct pickle_value *v)
{
    const struct torch_type *type = find_type(v, false);

    if (type)
        return type;
    return pickle_is(v, PICKLE_GLOBAL) && strcmp(v->global.module, "torch") == 0 ? &other : NULL;
}

enum dtype torch_tensor_dtype(const struct pickle_value *v)
{
    const struct torch_type *type = find_type(v, false);

    return type ? type->type : DTYPE_COUNT;
}

/* ---- checks ---- */

/* A tensor that is being read, for messages. */
struct reading {
    const struct torch_file *file;
    const char *name;
    struct tp_err *err;
};

static tp_status refuse(const struct reading *x, const char *what)
{
    return tp_fail(x->err, TP_E_CORRUPT, "%s: tensor %s %s", x->file->zip.part.path, x->name, what);
}

/* The storage of a tensor: ('storage', type, key, location, numel). */
static tp_status read_storage(const struct zip_member **member, const struct torch_type **type,
                              const struct rebuild *r, const struct reading *x)
{
    const struct pickle_value *id =
        pickle_is(r->storage, PICKLE_PERSISTENT) ? r->storage->id : NULL;
    const char *word = pickle_text(pickle_item(id, 0)), *key = pickle_text(pickle_item(id, 2));
    int64_t numel = -1, elem;

    if (pickle_count(id) != 5 || !word || strcmp(word, "storage") != 0 || !key ||
        !pickle_int(&numel, pickle_item(id, 4)) || numel < 0)
        return refuse(x, "has no storage");
    if (r->untyped && !pickle_is_global(pickle_item(id, 1), "torch.storage", "UntypedStorage") &&
        !pickle_is_global(pickle_item(id, 1), "torch", "UntypedStorage"))
        return refuse(x, "has a storage of an unknown type");
    *type = r->untyped ? find_dtype(r->dtype) : find_type(pickle_item(id, 1), true);
    if (!*type)
        return refuse(x, "has a storage of an unknown type");
    *member = torch_file_storage(x->file, key);
    if (!*member)
        return refuse(x, "has a storage that is not in the file");
    elem = r->untyped ? 1 : (*type)->bytes;
    if (numel > INT64_MAX / elem || numel * elem != (*member)->size)
        return refuse(x, "has a storage whose length is not that of its member");
    return TP_OK;
}

/* Shape and strides; *last is the offset of the last element from the first. */
static tp_status read_shape(struct torch_tensor *t, int64_t *last, int64_t *elements,
                            const struct rebuild *r, const struct reading *x)
{
    const int64_t n = pickle_count(r->size);
    bool repeats = false;

    *last = 0;
    *elements = 1;
    if (!pickle_is(r->size, PICKLE_TUPLE) || !pickle_is(r->stride, PICKLE_TUPLE) ||
        pickle_count(r->stride) != n)
        return refuse(x, "has a shape without strides");
    if (n > BOX_NDIM_MAX)
        return refuse(x, "has more axes than are supported");
    t->ndim = (int)n;
    for (int i = 0; i < t->ndim; i++) {
        int64_t length = -1, stride = -1, reach;

        if (!pickle_int(&length, pickle_item(r->size, i)) || length < 0 ||
            !pickle_int(&stride, pickle_item(r->stride, i)) || stride < 0)
            return refuse(x, "has a negative length or stride");
        if (length > LENGTH_MAX)
            return refuse(x, "has an axis that is longer than any file");
        repeats |= length > 1 && stride == 0;
        t->shape[i] = length;
        t->stride[i] = stride;
        if (__builtin_mul_overflow(*elements, length, elements) ||
            (length > 1 && (__builtin_mul_overflow(length - 1, stride, &reach) ||
                            __builtin_add_overflow(*last, reach, last))))
            return refuse(x, "reaches out of its storage");
    }
    return repeats && *elements > 0 ? refuse(x, "repeats its elements (stride 0)") : TP_OK;
}

tp_status torch_tensor_read(struct torch_tensor *out, const struct torch_file *f,
                            const struct pickle_value *v, const char *name, struct tp_err *err)
{
    const struct reading x = { f, name, err };
    struct torch_tensor t = { .dtype = DTYPE_COUNT };
    const struct torch_type *type = NULL;
    struct rebuild r;
    int64_t offset = -1, last = 0, elements = 0, room;
    tp_status st;

    if (!find_rebuild(&r, v))
        return refuse(&x, "is not a tensor");
    if (pickle_entries(r.metadata) > 0)
        return refuse(&x, "is a negative or conjugate view, which is not supported");
    TP_TRY(read_storage(&t.storage, &type, &r, &x));
    TP_TRY(read_shape(&t, &last, &elements, &r, &x));
    room = t.storage->size / type->bytes;
    if (!pickle_int(&offset, r.offset) || offset < 0 || offset > room ||
        (elements > 0 && (last >= room - offset || elements > room)))
        return refuse(&x, "reaches out of its storage");
    t.dtype = type->type;
    t.begin = f->zip.part.begin + t.storage->begin + offset * type->bytes;
    *out = t;
done:
    return st;
}
