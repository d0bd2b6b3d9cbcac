/* comm/transport.c - see comm/transport.h. */
#include "comm/transport.h"

#include "core/clock.h"

void transport_wait_begin(struct comm_world *w)
{
    w->entered = clock_seconds();
    heartbeat_collective(w->watch, true);
}

void transport_wait_end(struct comm_world *w)
{
    heartbeat_collective(w->watch, false);
    w->waited += clock_seconds() - w->entered;
}
