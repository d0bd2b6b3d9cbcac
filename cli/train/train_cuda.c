/* cli/train/train_cuda.c - see cli/train/train_cuda.h. */
#include "cli/train/train_cuda.h"

#include "cli/cuda_library.h"

/* Which GPU this rank uses. One GPU for several ranks: perhaps each of them sees another one. NCCL
 * refuses it if not. */
static tp_status choose(int *out, const struct cuda_library *cuda, const struct comm_world *w,
                        bool same_gpus, struct tp_err *err)
{
    int n = 0, ranks = comm_local_size(w), rank = comm_local_rank(w);
    tp_status st = cuda->count(&n, err);

    if (st)
        return st;
    if (ranks > n && (same_gpus || n > 1))
        return tp_fail(err, TP_E_USAGE,
                       "%d ranks are on this machine, which has %d usable GPU%s; each rank needs a "
                       "GPU of its own. Use a layout with fewer ranks, or --device cpu",
                       ranks, n, n == 1 ? "" : "s");
    *out = n >= ranks ? rank : 0;
    return TP_OK;
}

tp_status train_cuda_open(struct trainer_device *out, const struct comm_world *ranks,
                          bool same_gpus, struct tp_err *err)
{
    const struct cuda_library *cuda = NULL;
    int gpu = 0;
    tp_status st;

    *out = (struct trainer_device){ 0 };
    TP_TRY(cuda_library_find(&cuda, err));
    TP_TRY(choose(&gpu, cuda, ranks, same_gpus, err));
    out->ops = cuda->kernels;
    out->transport = cuda->transport;
    TP_TRY(cuda->device_open(&out->device, gpu, err));
done:
    return st ? tp_fail_in(err, "--device cuda") : TP_OK;
}
