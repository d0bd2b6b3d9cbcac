/* tests/fuzz/supervisor_exit.c - the file in which a supervisor says how a command ended. */
#include "orchestrator/process/supervisor.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct supervisor_outcome o;
    struct tp_err err = { 0 };
    tp_status st;

    fuzz_write("exit", data, size);
    st = supervisor_read(&o, fuzz_path("exit"), &err);
    fuzz_check_error(st, &err);
    if (st)
        return 0;
    fuzz_must(o.signal >= 0 && o.signal < NSIG, "no signal");
    fuzz_must(o.signal ? o.exit_code == -1 : o.exit_code >= 0 && o.exit_code < 4096,
              "no exit code and no errno");
    return 0;
}
