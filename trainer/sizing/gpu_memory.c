/* trainer/sizing/gpu_memory.c - see trainer/sizing/gpu_memory.h. */
#include "trainer/sizing/gpu_memory.h"

#define MIB (INT64_C(1) << 20)

/* ---- what kernels take ---- */

enum {
    REDUCE_ROWS = 64,      /* kernels/cuda/reduce.cuh: of a part, at least */
    REDUCE_PARTS = 256,    /* at most */
    SORTED_TOGETHER = 256, /* copies of tokens that a block sorts: kernels/cuda/permute.cu */
    /* of kernels/cuda/embedding.cu: tokens that a warp sums, and that a block sorts */
    EMBEDDING_PART = 32,
    EMBEDDING_TILE = 2048,
    EMBEDDING_DIGITS = 1024,
    FLOAT = sizeof(float),
};

/* The workspace of cuBLAS and the room after it: kernels/cuda/blas.cuh. */
static const int64_t BLAS_BYTES = 32 * MIB + (64 << 10);

/* The ring in which a checkpoint is read: three slots (reshard/engine/device_ring.h). It is freed
 * before the first step takes scratch. */
static const int64_t READING_BYTES = 48 * MIB;

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t parts_of(int64_t n, int64_t each)
{
    return (n + each - 1) / each;
}

/* Of the gradient of an embedding: two sums for each part of the sorted tokens, which are three
 * lists of numbers, and counts of digits. */
static int64_t embedding_of(const struct rank_dims *d)
{
    int64_t tokens = d->sequences * d->seq;
    int64_t sums = 2 * parts_of(tokens, EMBEDDING_PART) * d->hidden;
    int64_t sorting = 3 * tokens + parts_of(tokens, EMBEDDING_TILE) * EMBEDDING_DIGITS;

    return d->is_first ? (sums + sorting) * FLOAT : 0;
}

/* The scratch of a queue. When a kernel needs more, the old scratch stays, and the new one is twice
 * as large at least (device/cuda/cuda_queue.c). */
struct queue_scratch {
    int64_t newest, all;
};

static void need(struct queue_scratch *s, int64_t bytes)
{
    if (bytes <= s->newest)
        return;
    s->newest = most(bytes, 2 * s->newest);
    s->all += s->newest;
}

/* The queue that computes has scratch for one kernel at a time. cuBLAS is the first that asks, then
 * the sorts of experts; the embedding is the last in the backward pass. */
static int64_t scratch_of(const struct rank_dims *d)
{
    int64_t rows = d->sequences * d->seq, copies = rows * d->token_copies;
    int64_t widest = most(2 * d->hidden, most(d->up_width, d->qkv_width));
    struct queue_scratch s = { 0 };

    need(&s, BLAS_BYTES);
    need(&s, parts_of(copies, SORTED_TOGETHER) * d->experts * FLOAT);
    /* sums of the columns of gradients */
    need(&s, least(REDUCE_PARTS, parts_of(rows, REDUCE_ROWS)) * widest * FLOAT);
    need(&s, rows * d->heads * FLOAT); /* attention: a sum of each row's gradient */
    need(&s, embedding_of(d));
    return s.all;
}

/* ---- what CUDA and NCCL take: estimates from figures that others have published ---- */

/* A context with kernels that are loaded when they are first used. PyTorch 1.13 needed 274 MiB
 * (pytorch pull request 86509), CUDA 13 on an RTX 6000 Ada 426 MiB (unsloth-zoo pull request
 * 1053). */
static const int64_t CONTEXT_BYTES = 512 * MIB;

/* More with CUDA_MODULE_LOADING=EAGER, which several ranks set: all kernels of cuBLAS, NCCL and
 * this project. With all of its libraries' kernels PyTorch needed more than 1000 MB (pytorch issue
 * 107667). */
static const int64_t EAGER_BYTES = 1024 * MIB;

/* A communicator whose collectives have run: 688 MB with 4 A100 and NVLink, 544 MB with 2 (NCCL
 * issue 964). The connections of one that is not used are not made. */
static const int64_t GROUP_BYTES = 688 * MIB;

/* A lane, messages to or from a neighbour in one direction: with H100, 32 channels of 12 MiB to
 * each neighbour (NCCL issue 1685). */
static const int64_t LANE_BYTES = 32 * 12 * MIB;

/* Communicators of a rank whose collectives run: trainer/process_groups.h. */
static int groups_of(const struct model *m, const struct spec *s)
{
    return (spec_world(s) > 1) + (s->tp > 1) + (s->dp > 1) + (s->cp > 1 ? 3 : 0) +
           (s->pp > 1 ? 1 + m->tied : 0) + (s->ep > 1 ? 2 : 0) + (m->kv_heads < s->tp);
}

/* Lanes of a rank: a stage has one in each direction to and from each neighbour; in the ring of cp
 * a rank sends to the next and receives from the previous one. */
static int lanes_of(const struct spec *s)
{
    int neighbours = s->pp == 1 ? 0 : s->pp == 2 && s->vpp == 1 ? 1 : 2;

    return 2 * neighbours + (s->cp > 1 ? 2 : 0);
}

/* ---- all of it ---- */

struct gpu_memory gpu_memory_estimate(struct memory_model *mm, const struct spec *s,
                                      const struct workload *w)
{
    int stages[MEMORY_STAGES] = { 0 }, n = memory_stages(stages, s->pp);
    struct gpu_memory g = { .scratch = READING_BYTES };
    struct workload on_gpu = *w;
    int64_t own = 0, shared = 0;

    on_gpu.keeps_bf16 = true;
    for (int i = 0; i < n; i++) {
        struct memory_rank r;

        if (!memory_rank_count(&r, mm, s, &on_gpu, stages[i]))
            return (struct gpu_memory){ .total = MEMORY_MOST, .host = MEMORY_MOST };
        own = most(own, r.pools.own.used);
        shared = most(shared, r.pools.shared.used); /* all ranks have as many */
        g.scratch = most(g.scratch, scratch_of(&r.dims));
        g.host = most(g.host, r.pools.pinned.used + memory_staging_bytes(&r, s));
    }
    g.tensors = own + shared;
    g.cuda = CONTEXT_BYTES + (spec_world(s) > 1 ? EAGER_BYTES : 0);
    g.collectives = groups_of(mm->model, s) * GROUP_BYTES + lanes_of(s) * LANE_BYTES;
    g.total = g.tensors + g.scratch + g.cuda + g.collectives;
    return g;
}
