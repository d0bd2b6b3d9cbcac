/* cli/cuda_library.c - see cli/cuda_library.h. */
#include "cli/cuda_library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libtp-cuda.so"
static const char LIBRARY_ENV[] = "TP_CUDA_LIBRARY", HOST_ENV[] = "NCCL_HOSTID";

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

/* libcuda.so.1 comes with the driver. The library itself loads cuBLAS and NCCL, which takes a tenth
 * of a second and 100 MiB, so it is not loaded to learn that there is no driver. */
static bool has_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);

    if (driver)
        dlclose(driver);
    return driver;
}

void cuda_library_for_ranks(void)
{
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* the default is 8 */
}

bool cuda_library_shares_gpus(void)
{
    return getenv(HOST_ENV) || getenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

void cuda_library_name_host(int rank)
{
    const char *host = getenv(HOST_ENV);
    char name[HOST_NAME_MAX + 16];

    if (!host)
        return;
    snprintf(name, sizeof name, "%.*s.%d", HOST_NAME_MAX, host, rank);
    (void)setenv(HOST_ENV, name, 1);
}

bool cuda_library_is_likely(void)
{
    const char *named = getenv(LIBRARY_ENV);

    return (named && *named) || has_driver();
}

tp_status cuda_library_find(const struct cuda_library **out, struct tp_err *err)
{
    const char *named = getenv(LIBRARY_ENV);
    char path[PATH_MAX];

    if (named && *named)
        return cuda_library_load(out, named, err);
    if (beside_program(path, LIBRARY) || beside_program(path, "../lib/" LIBRARY) ||
        beside_program(path, "../lib/tp/" LIBRARY))
        return has_driver() ? cuda_library_load(out, path, err)
                            : tp_fail(err, TP_E_NOTFOUND,
                                      "no NVIDIA driver is installed on this machine (there is no "
                                      "libcuda.so.1), so it has no usable GPU");
    if (!cuda_library_load(out, LIBRARY, err))
        return TP_OK;
    return tp_fail(err, TP_E_NOTFOUND,
                   "there is no " LIBRARY
                   " beside this program, in ../lib or ../lib/tp from there, "
                   "or in the system's folders; `make cuda` builds it, and %s names another place",
                   LIBRARY_ENV);
}
