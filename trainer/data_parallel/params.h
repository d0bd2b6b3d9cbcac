/*
 * trainer/data_parallel/params.h - the parameters that a rank holds, and where each is in a few
 * spans (weights, gradients, moments). All spans have the same order, so the optimizer's step and
 * the reduction over data-parallel ranks are loops over contiguous memory.
 *
 * trainer/sizing/param_list.h describes an entry of the list, and trainer/sizing/param_spans.h the
 * spans.
 */
#ifndef TRAINER_DATA_PARALLEL_PARAMS_H
#define TRAINER_DATA_PARALLEL_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"
#include "layout/layout.h"
#include "trainer/data_parallel/pairwise_sum.h"
#include "trainer/sizing/param_list.h"
#include "trainer/sizing/param_spans.h"

/* Neighbouring entries of the list whose gradients, and with ZeRO weights, are sent in one call.
 * With zero3 a bucket is an FSDP unit, or with ep a unit without its experts, or these. */
struct param_bucket {
    int first, n;
    int64_t from, to;      /* in the whole spans, with the gaps after entries: buckets tile them */
    bool is_expert;        /* its entries are those of experts, with ep */
    int n_owners;          /* over which ZeRO partitions its entries */
    int unit;              /* of its entries, the unit whose gradients are final last */
    int64_t owner_grads;   /* elements of the largest owner's part of the gradients */
    int64_t owner_weights; /* floats of the largest owner's part of the weights, as they are sent */
};

struct params {
    struct kernel_queue k;           /* computes with them */
    struct device_queue *comm_queue; /* sends them while k computes */
    struct param_rank rank;
    enum dtype dtype;
    bool sharded; /* zero3: this rank keeps only what it owns */
    int n;
    struct param *list;
    int *first_of;        /* [tensors of the layout] the first entry of each; -1: it has none */
    int tied;             /* entry of a tied embedding that another stage has too; -1: none */
    int64_t n_elements;   /* of a whole span; gaps between tensors are always zero */
    float *value;         /* the weights in fp32; in bf16 without ZeRO the masters; or NULL */
    uint16_t *value_bf16; /* rounded, for the products; NULL in fp32 */
    int64_t n_vectors;
    float *vectors;    /* in bf16 with ZeRO: what layers read in fp32; else NULL */
    float *grad;       /* in memory that collectives reach, except with zero3 */
    int64_t n_partial; /* elements of all partial gradients */
    float *partial;    /* where one call sums them, in memory that collectives reach */
    int64_t n_owned;   /* elements of each owned span */
    float *owned;      /* what AdamW updates; NULL: it updates `value` */
    uint16_t *owned_bf16;
    float *owned_grad; /* zero3: summed over the microbatches; in memory that collectives reach */
    float *exp_avg, *exp_avg_sq;

    int n_buckets;
    struct param_bucket *buckets;

    /* ZeRO over the n_owners ranks of dp (1: everyone owns all), with ep other than experts; see
     * trainer/data_parallel/bucket_transfer.h */
    int n_owners;
    struct param_partition *partitions; /* [n_owners or rank.n_expert_owners][n] */
    int n_packs;                        /* buckets that can be sent at the same time */
    int64_t pack_each;                  /* floats of a pack */
    float *pack;      /* [n_packs][pack_each]: each is [n_owners][each] of a bucket, in memory that
                         collectives reach */
    float *grad_pack; /* zero3: for gradients, while `pack` is for weights */
    float *expert_pack, *expert_grad_pack; /* zero3 with ep: the same for experts */

    /* --same-bits; see trainer/same_bits/same_bits.h */
    bool same_bits;
    int n_virtual;                /* emulated tp ranks; without --same-bits the real ones */
    int n_shards;                 /* tp ranks that this rank emulates */
    struct pairwise_sum pairwise; /* sums of earlier gradient groups */
    int table;                    /* entry of the embedding's first shard, if head.n is not 0 */
    /* After the other sums: gradients of a tied head on the embedding's own stage, kept apart until
     * the step's end as if on another stage; n 0: none. */
    struct pairwise_range head;
    int n_places;   /* numbers of all ranks whose sum is the gradient norm's square */
    double *places; /* in memory that collectives reach, like rows */
    int64_t n_rows; /* rows of all entries that this rank counts */
    double *rows;
    double *squares; /* [n] sum of squares of each entry's gradient, for the norm */
};

/* Whether the gradients of unit a are final before those of b. */
static inline bool params_is_before(int a, int b)
{
    return a != b && (a == LAYER_LAST || b == LAYER_FIRST || (b >= 0 && a > b));
}

/* Whether ZeRO sends a bucket: under zero1 every rank updates the experts that it has as a
 * whole. */
static inline bool params_sends(const struct params *p, const struct param_bucket *b)
{
    return p->n_owners > 1 && (p->sharded || !b->is_expert);
}

/* What this rank updates of an entry: n elements each. */
struct param_owned {
    int64_t n;
    float *value;         /* weights, in bf16 their masters */
    uint16_t *value_bf16; /* NULL in fp32 */
    float *grad, *exp_avg, *exp_avg_sq;
};

/* List the parameters of `rank` and lay them out in spans of the sizes that were counted for its
 * stage. params_take allocates the memory. With zero3 the list begins with the entries outside of
 * layers. TP_E_INTERNAL: the list needs more than was counted. */
tp_status params_init(struct params *p, const struct layout *l, int rank,
                      const struct param_sizes *counted, struct arena *arena, struct tp_err *err);

/* Partition the entries among the ranks that update them, and divide them into buckets.
 * params_init calls this. */
tp_status params_partition(struct params *p, const struct layout *l, struct mesh_coord at,
                           bool is_one_bucket, struct arena *arena, struct tp_err *err);

/* Take the memory of the spans from the pools. */
void params_take(struct params *p, const struct param_sizes *z, struct buffer_pools *pools);

/* The first entry of the tensor with this role and layer (the first part of its first shard); -1:
 * not on this rank's stage. */
int params_find(const struct params *p, const struct layout *l, enum tensor_role role, int layer);

/* The first entry that holds the same elements as entry i (several shards may hold a KV head). */
int params_first_holder(const struct params *p, int i);

/* Copy what this rank owns of each entry to the other entries that hold the same elements. */
void params_copy_to_holders(const struct params *p);

/* Elements from one shard of entry i's tensor to the next; 0: there is only one shard. */
int64_t params_stride(const struct params *p, int i);

/* The bucket that is the FSDP unit of a layer, LAYER_FIRST or LAYER_LAST, or the first of its two;
 * -1: there is none, or zero3 is off. */
int params_unit(const struct params *p, int unit);

/* The end of the buckets of the FSDP unit that begins with bucket `first`. */
int params_unit_end(const struct params *p, int first);

/* Where layers read an entry, as q->type, and where they write its gradient. */
const void *params_weight(const struct params *p, const struct param *q);

/* An entry in bf16, also one that layers read in fp32: as AdamW rounds it. NULL: with zero3, which
 * sends such an entry in fp32 only, and in fp32. */
const uint16_t *params_rounded(const struct params *p, const struct param *q);

float *params_grad(const struct params *p, const struct param *q);

struct param_owned params_owned(const struct params *p, const struct param *q);

/* Where the gradient of an entry is summed over the microbatches: of the whole entry, or with zero3
 * of what this rank owns. */
struct param_sums {
    float *at;
    int64_t n;
};
struct param_sums params_sums(const struct params *p, const struct param *q);

/* Round what this rank owns to bf16; nothing in fp32. */
void params_round(const struct params *p);

/* Where this rank keeps entry i's elements of `group`. *within gets the box that is stored there,
 * row-major, as *dtype. NULL: it keeps none. */
void *params_place(const struct params *p, int i, const char *group, struct box *within,
                   enum dtype *dtype);

#endif
