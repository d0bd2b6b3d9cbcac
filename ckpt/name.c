/* ckpt/name.c - see ckpt/name.h. */
#include "ckpt/name.h"

#include <string.h>

#include "core/text.h"

/* What is wrong with a name, or NULL. */
static const char *fault_of(const char *name)
{
    const char *p = name;

    if (!*p)
        return "is empty";
    if (strnlen(name, NAME_BYTES_MAX + 1) > NAME_BYTES_MAX)
        return "is longer than 1024 bytes";
    if (strcmp(name, ".") == 0)
        return "is '.', which HDF5 cannot name a link";
    while (*p) {
        int n = text_utf8_length(p);

        if (n == 0)
            return "is not UTF-8";
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return "has a control character";
        if (*p == '/' || *p == '@')
            return "has a '/' or '@', which separate names in a shard";
        p += n;
    }
    return NULL;
}

tp_status name_check(const struct tensor *t, struct tp_err *err)
{
    const char *fault = fault_of(t->name);

    if (fault)
        return tp_fail(err, TP_E_USAGE, "tensor name '%.200s' %s; rename it", t->name, fault);
    fault = fault_of(t->group);
    if (!fault && strcmp(t->group, "index") == 0)
        fault = "is that of the shard's own table";
    if (fault)
        return tp_fail(err, TP_E_USAGE, "tensor %.200s: group name '%.200s' %s; rename it", t->name,
                       t->group, fault);
    return TP_OK;
}
