/* ckpt/tensor_name.c - see ckpt/tensor_name.h. */
#include "ckpt/tensor_name.h"

#include <string.h>

#include "core/text.h"

/* What is wrong with a name; NULL: nothing. */
static const char *find_fault(const char *name)
{
    const char *p = name;

    if (!*p)
        return "is empty";
    if (strnlen(name, TENSOR_NAME_BYTES_MAX + 1) > TENSOR_NAME_BYTES_MAX)
        return "is longer than 1024 bytes";
    if (strcmp(name, ".") == 0)
        return "is '.', which is not a valid name of an HDF5 link";
    while (*p) {
        int n = text_utf8_length(p);

        if (n == 0)
            return "is not UTF-8";
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return "contains a control character";
        if (*p == '/' || *p == '@')
            return "contains '/' or '@', which separate names in a shard";
        p += n;
    }
    return NULL;
}

tp_status tensor_name_check(const struct tensor *t, struct tp_err *err)
{
    const char *fault = find_fault(t->name);

    if (fault)
        return tp_fail(err, TP_E_USAGE, "tensor name '%.200s' %s; rename it", t->name, fault);
    fault = find_fault(t->group);
    if (!fault && strcmp(t->group, "index") == 0)
        fault = "is reserved for the table of the shard";
    if (fault)
        return tp_fail(err, TP_E_USAGE, "tensor %.200s: group name '%.200s' %s; rename it", t->name,
                       t->group, fault);
    return TP_OK;
}
