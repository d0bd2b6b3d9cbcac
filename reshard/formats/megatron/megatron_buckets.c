/* reshard/formats/megatron/megatron_buckets.c - see reshard/formats/megatron/megatron_buckets.h. */
#include "reshard/formats/megatron/megatron_buckets.h"

enum { FLAT_ALIGN = 64 };

/* A bucket that is being filled. */
struct bucket {
    int number;
    int64_t begin; /* in the buffer */
};

static void close_bucket(struct bucket *b, int64_t at)
{
    b->number++;
    b->begin = at;
}

static bool is_full(const struct megatron_bucket_rule *rule, const struct bucket *b, int64_t at)
{
    const int64_t n = at - b->begin;

    if (rule->sizes)
        return b->number < rule->n_sizes && n == rule->sizes[b->number];
    return rule->full > 0 && n >= rule->full;
}

int64_t megatron_buckets_full(bool is_first, int64_t size, int64_t buckets, int64_t all)
{
    if (!is_first)
        return 0;
    return buckets ? all / buckets : size;
}

int64_t megatron_buckets_place(struct megatron_slot *slots, int n,
                               const struct megatron_bucket_rule *rule)
{
    struct bucket b = { 0, 0 };
    int64_t at = 0;

    for (int i = 0; i < n; i++) {
        struct megatron_slot *s = &slots[i];

        at = b.begin + (at - b.begin + FLAT_ALIGN - 1) / FLAT_ALIGN * FLAT_ALIGN;
        if (s->shared && at > b.begin)
            close_bucket(&b, at);
        s->begin = at;
        at += s->n;
        if (s->shared || is_full(rule, &b, at))
            close_bucket(&b, at);
    }
    return at;
}
