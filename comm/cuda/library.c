/* comm/cuda/library.c - see comm/cuda/library.h. */
#include "comm/cuda/library.h"

#include <dlfcn.h>
#include <string.h>

tp_status cuda_library_load(const struct cuda_library **out, const char *path, struct tp_err *err)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct cuda_library *library;

    if (!handle)
        return tp_fail(err, TP_E_NOTFOUND, "GPUs need a library that cannot be loaded: %s",
                       dlerror());
    library = dlsym(handle, CUDA_LIBRARY_SYMBOL);
    if (!library || strcmp(library->version, TP_VERSION) != 0) {
        tp_fail(err, TP_E_NOTFOUND,
                "%s: version %s was expected, and this is %s. Install both from "
                "the same build",
                path, TP_VERSION, library ? library->version : "another library");
        dlclose(handle);
        return err->status;
    }
    *out = library;
    return TP_OK;
}
