/* cli/train/train_cuda.c - see cli/train/train_cuda.h. */
#include "cli/train/train_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cuda_library.h"
#include "comm/control.h"

/* Which GPU this rank uses. One GPU for several ranks: perhaps each of them sees another one;
 * train_cuda_check finds out. Ranks that may share GPUs take turns. */
static tp_status choose(int *out, const struct cuda_library *cuda, const struct comm_world *w,
                        bool same_gpus, struct heartbeat *heartbeat, struct tp_err *err)
{
    int n = 0, ranks = comm_local_size(w), rank = comm_local_rank(w);
    tp_status st = cuda->count(&n, err);

    if (st) {
        heartbeat_gpus_missing(heartbeat, ranks);
        return st;
    }
    if (ranks > n && (same_gpus || n > 1) && !cuda_library_shares_gpus()) {
        heartbeat_gpus_missing(heartbeat, ranks - n);
        return tp_fail(err, TP_E_USAGE,
                       "%d ranks are on this machine, which has %d usable GPU%s; each rank needs a "
                       "GPU of its own. Use a layout with fewer ranks, or --device cpu",
                       ranks, n, n == 1 ? "" : "s");
    }
    if (ranks > n && same_gpus)
        cuda_library_name_host(rank);
    *out = rank % n;
    return TP_OK;
}

/* Two hosts may have one name, and containers of a machine one boot id. */
static void find_host(char out[TRAIN_CUDA_HOST_MAX])
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    size_t n;

    if (gethostname(out, TRAIN_CUDA_HOST_MAX / 2) != 0)
        out[0] = '\0';
    n = strnlen(out, TRAIN_CUDA_HOST_MAX / 2 - 1);
    snprintf(out + n, TRAIN_CUDA_HOST_MAX - n, " ");
    if (f) {
        (void)!fgets(out + n + 1, (int)(TRAIN_CUDA_HOST_MAX - n - 1), f);
        fclose(f);
    }
}

tp_status train_cuda_open(struct trainer_device *out, struct train_cuda_gpu *gpu,
                          const struct comm_world *ranks, bool same_gpus,
                          struct heartbeat *heartbeat, struct tp_err *err)
{
    const struct cuda_library *cuda = NULL;
    int ordinal = 0;
    tp_status st;

    *gpu = (struct train_cuda_gpu){ 0 };
    *out = (struct trainer_device){ 0 };
    TP_TRY(cuda_library_find(&cuda, err));
    TP_TRY(choose(&ordinal, cuda, ranks, same_gpus, heartbeat, err));
    out->ops = cuda->kernels;
    out->transport = cuda->transport;
    TP_TRY(cuda->name(gpu->name, sizeof gpu->name, ordinal, err));
    find_host(gpu->host);
    TP_TRY(cuda->device_open(&out->device, ordinal, err));
    TP_TRY(cuda->memory(&out->gpu_bytes, ordinal, err));
done:
    return st ? tp_fail_in(err, "--device cuda") : TP_OK;
}

/* ---- GPUs that ranks share ---- */

static bool is_same(const struct train_cuda_gpu *a, const struct train_cuda_gpu *b)
{
    return strcmp(a->host, b->host) == 0 && strcmp(a->name, b->name) == 0;
}

/* The first rank before `rank` with the same GPU, -1: none. */
static int sharer(const struct train_cuda_gpu *all, int rank)
{
    for (int i = 0; i < rank; i++)
        if (is_same(&all[i], &all[rank]))
            return i;
    return -1;
}

static tp_status find_shared(const struct train_cuda_gpu *all, int rank, int n_ranks,
                             struct heartbeat *heartbeat, struct tp_err *err)
{
    int shared = -1, other = -1, here = 0;

    for (int i = 0; i < n_ranks; i++) {
        int first = sharer(all, i);

        here += first >= 0 && strcmp(all[i].host, all[rank].host) == 0;
        if (first >= 0 && shared < 0) {
            shared = i;
            other = first;
        }
    }
    heartbeat_gpus_missing(heartbeat, here);
    if (shared < 0)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "--device cuda: ranks %d and %d both have GPU %s of %.*s; each rank needs a GPU "
                   "of its own. Give every node as many GPUs as ranks, use a layout with fewer "
                   "ranks, or --device cpu",
                   other, shared, all[shared].name, (int)strcspn(all[shared].host, " "),
                   all[shared].host);
}

tp_status train_cuda_check(const struct train_cuda_gpu *gpu, struct comm_world *ranks,
                           struct heartbeat *heartbeat, struct tp_err *err)
{
    struct comm_control *c = comm_control(ranks);
    struct train_cuda_gpu *all;
    tp_status st;

    if (cuda_library_shares_gpus())
        return TP_OK;
    all = calloc((size_t)control_size(c), sizeof *all);
    st = all ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for the names of GPUs");
    st = control_agree(c, st, err);
    if (!st && all)
        st = control_all_gather(c, all, gpu, sizeof *gpu, err);
    if (!st && all)
        st = control_agree(c, find_shared(all, control_rank(c), control_size(c), heartbeat, err),
                           err);
    free(all);
    return st;
}
