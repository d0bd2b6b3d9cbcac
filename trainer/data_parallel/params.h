/*
 * trainer/data_parallel/params.h - the parameters that a rank holds: where each lies in a few
 * parallel spans of equal order (weights, gradients, moments), so that an optimizer's step and the
 * reduction over data-parallel ranks are runs over memory.
 *
 * What an entry is, is described in trainer/sizing/param_list.h, and the spans in
 * trainer/sizing/param_spans.h.
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

/* Entries whose gradients, and with ZeRO weights, are sent together: neighbours in the list. With
 * zero3 a unit: the entries of a layer, or of what comes before the layers, or after them. */
struct param_bucket {
    int first, n;
    int64_t from, to;     /* in the whole spans, gaps behind entries too: buckets tile them */
    int unit;             /* of its entries the one whose gradients are final last */
    int64_t each;         /* elements of an owner's part of the gradients: the most that any has */
    int64_t weights_each; /* floats of an owner's part of the weights, as they are sent */
};

struct params {
    struct kernel_queue k;           /* that works on them */
    struct device_queue *comm_queue; /* that sends them, beside computing */
    struct param_rank rank;
    enum dtype dtype;
    bool sharded; /* zero3: this rank keeps no more than it owns */
    int n;
    struct param *list;
    int tied;             /* entry of a tied embedding that another stage has too; -1: none */
    int64_t n_elements;   /* of a whole span; gaps between tensors are zero and stay it */
    float *value;         /* the weights in fp32; in bf16 without ZeRO the masters; or NULL */
    uint16_t *value_bf16; /* rounded, for the products; NULL in fp32 */
    int64_t n_vectors;
    float *vectors;    /* in bf16 with ZeRO: what layers read in fp32; else NULL */
    float *grad;       /* in memory that collectives reach, but for zero3 */
    int64_t n_partial; /* elements of all that are partial */
    float *partial;    /* where they are summed together, in memory that collectives reach */
    int64_t n_owned;   /* elements of each owned span */
    float *owned;      /* what AdamW updates, where that is not `value` */
    uint16_t *owned_bf16;
    float *owned_grad; /* zero3: summed over the microbatches; in memory that collectives reach */
    float *exp_avg, *exp_avg_sq;

    int n_buckets;
    struct param_bucket *buckets;

    /* ZeRO over the n_owners ranks of dp (1: everyone owns all); see
     * trainer/data_parallel/bucket_transfer.h */
    int n_owners;
    struct param_partition *pieces; /* [n_owners][n] */
    int n_packs;                    /* buckets that can be sent at the same time */
    int64_t pack_each;              /* floats of a pack */
    float *pack;      /* [n_packs][pack_each]: each [n_owners][each] of one bucket, in memory that
                         collectives reach */
    float *grad_pack; /* zero3: for gradients, while `pack` is for weights */

    /* --same-bits; see trainer/same_bits/same_bits.h */
    bool same_bits;
    int n_virtual;                /* emulated tp ranks; without --same-bits the real ones */
    int n_shards;                 /* of them, those that this rank emulates */
    struct pairwise_sum pairwise; /* where gradients of earlier microbatches are */
    int table;                    /* entry of the embedding's first shard, where the next has any */
    struct pairwise_range
        head;       /* behind the other sums: gradients of a tied head on the embedding's own
              stage, kept apart until the step's end as on another; n 0: none */
    int n_places;   /* numbers that the gradient norm is made of, all ranks' */
    double *places; /* in memory that collectives reach, as the next */
    int64_t n_rows; /* of all entries that this rank counts */
    double *rows;
    double *squares; /* [n] of each entry's gradient, for the norm */
};

/* Whether the gradients of unit a are final before those of b. */
static inline bool params_is_before(int a, int b)
{
    return a != b && (a == LAYER_LAST || b == LAYER_FIRST || (b >= 0 && a > b));
}

/* What this rank updates of an entry: n elements each. */
struct param_owned {
    int64_t n;
    float *value;         /* weights, in bf16 their masters */
    uint16_t *value_bf16; /* NULL in fp32 */
    float *grad, *exp_avg, *exp_avg_sq;
};

/* List the parameters of `rank` and lay them out in spans of the sizes that were counted for its
 * stage. Memory comes with params_take. With zero3 the list begins with what is not of a layer.
 * TP_E_INTERNAL: the list needs more than was counted. */
tp_status params_init(struct params *p, const struct layout *l, int rank,
                      const struct param_sizes *counted, struct arena *arena, struct tp_err *err);

/* Partition the entries among the ranks that update them, and divide them into buckets. For
 * params_init. */
tp_status params_partition(struct params *p, const struct layout *l, struct mesh_coord at,
                           bool is_one_bucket, struct arena *arena, struct tp_err *err);

/* Take the spans. */
void params_take(struct params *p, const struct param_sizes *z, struct buffer_pools *pools);

/* Number in the list of the (first part of the first shard of the) tensor of this role and layer,
 * or -1: not on this rank's stage. */
int params_find(const struct params *p, const struct layout *l, enum tensor_role role, int layer);

/* The first entry that holds what entry i does: of KV heads several shards may. */
int params_first_holder(const struct params *p, int i);

/* Copy what this rank owns of an entry to the entries that hold the same. */
void params_copy_to_holders(const struct params *p);

/* Elements from one shard of entry i's tensor to the next; 0: there is one. */
int64_t params_stride(const struct params *p, int i);

/* Number of the unit of a layer, LAYER_FIRST or LAYER_LAST among the buckets; -1: there is none, or
 * no zero3. */
int params_unit(const struct params *p, int unit);

/* Where layers read an entry, as q->type, and leave its gradient. */
const void *params_weight(const struct params *p, const struct param *q);
float *params_grad(const struct params *p, const struct param *q);

struct param_owned params_owned(const struct params *p, const struct param *q);

/* Where the gradient of an entry is summed up over the microbatches: of all of it, or with zero3 of
 * what this rank owns. */
struct param_sums {
    float *at;
    int64_t n;
};
struct param_sums params_sums(const struct params *p, const struct param *q);

/* Round what this rank owns to bf16; nothing in fp32. */
void params_round(const struct params *p);

/* Where this rank keeps what entry i has of `group`: *within gets the box that lies there,
 * row-major, as *dtype. NULL: it keeps nothing of it. */
void *params_place(const struct params *p, int i, const char *group, struct box *within,
                   enum dtype *dtype);

#endif
