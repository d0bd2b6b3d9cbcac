/*
 * tests/fault/handles_hangup.c - a library that handles SIGHUP from its constructor on, as UCX
 * does, which Open MPI 5 loads. Preloaded (LD_PRELOAD), it is in every program.
 */
#include <signal.h>

static void handle(int signal_number)
{
    (void)signal_number;
}

__attribute__((constructor)) static void handle_hangup(void)
{
    signal(SIGHUP, handle);
}
