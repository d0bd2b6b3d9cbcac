/* ckpt/name.c - see ckpt/name.h. */
#include "ckpt/name.h"

#include <string.h>

/* Bytes of the UTF-8 sequence at p (shortest form, no surrogates), 0: it is none. */
static int utf8_length(const unsigned char *p)
{
    unsigned code;
    int n;

    if (p[0] < 0x80)
        return 1;
    n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 0;
    code = p[0] & (0x7fu >> n);
    for (int i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (p[i] & 0x3f);
    }
    if ((n == 3 && code < 0x800) || (n == 4 && code < 0x10000) || code > 0x10ffff)
        return 0;
    return code >= 0xd800 && code <= 0xdfff ? 0 : n;
}

/* What is wrong with a name, or NULL. */
static const char *fault_of(const char *name)
{
    const unsigned char *p = (const unsigned char *)name;

    if (!*p)
        return "is empty";
    if (strnlen(name, NAME_BYTES_MAX + 1) > NAME_BYTES_MAX)
        return "is longer than 1024 bytes";
    if (strcmp(name, ".") == 0)
        return "is '.', which HDF5 cannot name a link";
    while (*p) {
        int n = utf8_length(p);

        if (n == 0)
            return "is not UTF-8";
        if (*p < 0x20 || *p == 0x7f)
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
