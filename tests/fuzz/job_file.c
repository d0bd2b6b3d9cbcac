/* tests/fuzz/job_file.c - the YAML of a job. */
#include "orchestrator/job/job_file.h"
#include "orchestrator/backends.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct job job;

    fuzz_check_error(job_file_parse(&job, (const char *)data, size, "/home/user/job.yaml",
                                    backends_job(), &arena, &err),
                     &err);
    arena_free(&arena);
    return 0;
}
