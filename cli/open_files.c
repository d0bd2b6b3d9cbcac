/* cli/open_files.c - see cli/open_files.h. */
#include "cli/open_files.h"

#include <sys/resource.h>

void open_files_raise(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}
