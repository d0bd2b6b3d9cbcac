/* reshard/formats/hf_trainer/hf_trainer_files.c - see
 * reshard/formats/hf_trainer/hf_trainer_files.h.
 */
#include "reshard/formats/hf_trainer/hf_trainer_files.h"

#include <stdio.h>
#include <string.h>

#include "storage/object.h"

enum { NAME_TEXT = 64, FILE_BYTES_MAX = 64 << 20 };

/* Write the name of number k. False: there is no star in it, and k is not 0. */
static bool number_name(char out[NAME_TEXT], const char *name, int k)
{
    const char *star = strchr(name, '*');

    if (star)
        snprintf(out, NAME_TEXT, "%.*s%d%s", (int)(star - name), name, k, star + 1);
    else
        snprintf(out, NAME_TEXT, "%s", name);
    return star || k == 0;
}

tp_status hf_trainer_files_leave(struct piece_source *s, const struct hf_trainer_file *files,
                                 size_t n, struct tp_err *err)
{
    char first[NAME_TEXT];
    tp_status st = TP_OK;

    for (size_t i = 0; i < n && !st; i++) {
        number_name(first, files[i].name, 0);
        if (object_is_in(piece_source_path(s), first))
            st = files[i].copied ? piece_source_leave_extra(s, files[i].name, NULL, 0, err)
                                 : piece_source_leave(s, files[i].name, err);
    }
    return st;
}

tp_status hf_trainer_files_copy(struct piece_source *s, const char *name, const char *dir,
                                struct tp_err *err)
{
    char file[NAME_TEXT];
    tp_status st = TP_OK;

    for (int k = 0; number_name(file, name, k) && !st; k++) {
        if (k && !object_is_in(piece_source_path(s), file))
            break;
        st = object_copy_file(piece_source_path(s), dir, file, FILE_BYTES_MAX, err);
    }
    return st;
}
