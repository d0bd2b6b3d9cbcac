/* device/cpu/pages.c - see device/cpu/pages.h. */
#include "device/cpu/pages.h"

#include <stdlib.h>
#include <sys/mman.h>

struct pages {
    struct pages *next;
    void *at;
    size_t n_bytes;
};

tp_status pages_map(struct pages **list, void **out, int64_t n_bytes, struct tp_err *err)
{
    struct pages *p = malloc(sizeof *p);

    if (!p)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a list of buffers");
    p->n_bytes = n_bytes > 0 ? (size_t)n_bytes : 1;
    p->at = mmap(NULL, p->n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p->at == MAP_FAILED) {
        free(p);
        return tp_fail(err, TP_E_NOMEM, "out of memory: %lld bytes of tensors", (long long)n_bytes);
    }
    madvise(p->at, p->n_bytes, MADV_HUGEPAGE); /* only advice: a refusal costs speed */
    p->next = *list;
    *list = p;
    *out = p->at;
    return TP_OK;
}

static void unmap(struct pages **link)
{
    struct pages *p = *link;

    *link = p->next;
    munmap(p->at, p->n_bytes);
    free(p);
}

void pages_unmap(struct pages **list, void *p)
{
    struct pages **link = list;

    while (*link && (*link)->at != p)
        link = &(*link)->next;
    if (*link)
        unmap(link);
}

void pages_unmap_all(struct pages **list)
{
    while (*list)
        unmap(list);
}
