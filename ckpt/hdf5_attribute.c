/* ckpt/hdf5_attribute.c - see ckpt/hdf5_attribute.h. */
#include "ckpt/hdf5_attribute.h"

#include <string.h>

static bool put(hid_t where, const char *name, hid_t file_type, hid_t space, hid_t memory_type,
                const void *value)
{
    hid_t a = H5Acreate2(where, name, file_type, space, H5P_DEFAULT, H5P_DEFAULT);
    bool ok = a >= 0 && H5Awrite(a, memory_type, value) >= 0;

    if (a >= 0)
        H5Aclose(a);
    return ok;
}

bool hdf5_attribute_ints(hid_t where, const char *name, const int64_t *values, int n)
{
    hsize_t dims = (hsize_t)n;
    hid_t space = H5Screate_simple(1, &dims, NULL);
    bool ok = space >= 0 && put(where, name, H5T_STD_I64LE, space, H5T_NATIVE_INT64, values);

    if (space >= 0)
        H5Sclose(space);
    return ok;
}

bool hdf5_attribute_int(hid_t where, const char *name, int64_t value)
{
    hid_t space = H5Screate(H5S_SCALAR);
    bool ok = space >= 0 && put(where, name, H5T_STD_I64LE, space, H5T_NATIVE_INT64, &value);

    if (space >= 0)
        H5Sclose(space);
    return ok;
}

bool hdf5_attribute_text(hid_t where, const char *name, const char *text)
{
    hid_t space = H5Screate(H5S_SCALAR), type = H5Tcopy(H5T_C_S1);
    bool ok = space >= 0 && type >= 0 && H5Tset_size(type, strlen(text)) >= 0 &&
              H5Tset_strpad(type, H5T_STR_NULLPAD) >= 0 && H5Tset_cset(type, H5T_CSET_UTF8) >= 0 &&
              put(where, name, type, space, type, text);

    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    return ok;
}
