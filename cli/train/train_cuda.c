/* cli/train/train_cuda.c - see cli/train/train_cuda.h. */
#include "cli/train/train_cuda.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/cuda/library.h"

#define LIBRARY "libtp-cuda.so"
static const char LIBRARY_ENV[] = "TP_CUDA_LIBRARY";

/* The file `name` from the program's folder, if it exists. */
static bool beside_program(char path[PATH_MAX], const char *name)
{
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
    char *slash;

    if (n <= 0)
        return false;
    path[n] = '\0';
    if (!(slash = strrchr(path, '/')) || snprintf(slash + 1, (size_t)(path + PATH_MAX - slash - 1),
                                                  "%s", name) >= path + PATH_MAX - slash - 1)
        return false;
    return access(path, F_OK) == 0;
}

static tp_status load(const struct cuda_library **out, struct tp_err *err)
{
    const char *named = getenv(LIBRARY_ENV);
    char path[PATH_MAX];

    if (named && *named)
        return cuda_library_load(out, named, err);
    if (beside_program(path, LIBRARY) || beside_program(path, "../lib/" LIBRARY))
        return cuda_library_load(out, path, err);
    if (!cuda_library_load(out, LIBRARY, err))
        return TP_OK;
    return tp_fail(err, TP_E_NOTFOUND,
                   "there is no " LIBRARY " beside this program, in ../lib from there, or in the "
                   "system's folders; `make cuda` builds it, and %s names another place",
                   LIBRARY_ENV);
}

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
    TP_TRY(load(&cuda, err));
    TP_TRY(choose(&gpu, cuda, ranks, same_gpus, err));
    out->ops = cuda->kernels;
    out->transport = cuda->transport;
    TP_TRY(cuda->device_open(&out->device, gpu, err));
done:
    return st ? tp_fail_in(err, "--device cuda") : TP_OK;
}
