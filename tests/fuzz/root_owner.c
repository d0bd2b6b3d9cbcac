/* tests/fuzz/root_owner.c - ROOT/owner and ROOT/epoch, which other jobs write to a shared root. The
 * first byte of the input says which; an owner may also be one of this host. */
#include <jansson.h>

#include "ckpt/epoch.h"
#include "ckpt/root_owner.h"
#include "tests/fuzz/fuzz.h"

enum { EPOCH = 1, OF_THIS_HOST = 2 };

/* The same owner, with the boot and the pid namespace of this process. */
static void write_here(const uint8_t *data, size_t size)
{
    json_t *owner = json_loadb((const char *)data, size, 0, NULL);
    char boot[64] = "", space[64] = "", *text;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");

    fuzz_must(f && fgets(boot, sizeof boot, f) && readlink("/proc/self/ns/pid", space, 63) > 0,
              "no /proc");
    fclose(f);
    boot[strcspn(boot, "\n")] = 0;
    if (json_is_object(owner)) {
        json_object_set_new(owner, "boot", json_string(boot));
        json_object_set_new(owner, "pid_space", json_string(space));
        text = json_dumps(owner, 0);
        fuzz_must(text != NULL, "no memory");
        fuzz_write("owner", text, strlen(text));
        free(text);
    } else {
        fuzz_write("owner", data, size);
    }
    json_decref(owner);
}

static void check_owner(void)
{
    struct tp_err err = { 0 };
    tp_status st = root_owner_check(fuzz_dir(), "mine", &err);

    fuzz_check_error(st, &err);
    fuzz_must(st == TP_OK || st == TP_E_EXISTS, "neither free nor owned");
    for (const char *c = err.msg; st && *c; c++)
        fuzz_must((unsigned char)*c >= ' ' && *c != 127, "a control character in a message");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t what = fuzz_take(&data, &size);
    struct tp_err err = { 0 };
    int64_t epoch = -1;
    tp_status st;

    if (what & EPOCH) {
        fuzz_write("epoch", data, size);
        st = ckpt_epoch(&epoch, fuzz_dir(), &err);
        fuzz_check_error(st, &err);
        fuzz_must(st || (epoch >= 0 && epoch < INT64_MAX), "an epoch that has no next one");
        return 0;
    }
    if (what & OF_THIS_HOST)
        write_here(data, size);
    else
        fuzz_write("owner", data, size);
    check_owner();
    return 0;
}
