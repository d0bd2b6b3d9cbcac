/* reshard/formats/pieces/compiled_name.c - see reshard/formats/pieces/compiled_name.h. */
#include "reshard/formats/pieces/compiled_name.h"

#include <string.h>

#define WRAPPED "_orig_mod."

bool compiled_name_is(const char *name)
{
    return strstr(name, WRAPPED) != NULL;
}

const char *compiled_name_plain(struct arena *arena, const char *name)
{
    const size_t n = strlen(WRAPPED);
    char *plain = arena_strdup(arena, name), *to = plain;

    for (const char *at = name; plain && *at; at++) {
        while ((at == name || at[-1] == '.') && strncmp(at, WRAPPED, n) == 0)
            at += n;
        *to++ = *at;
        if (!*at)
            break;
    }
    if (plain)
        *to = 0;
    return plain;
}
