/*
 * tests/fakecuda/nccl_connect.h - NCCL connects ranks when they first call: the first collective of
 * a communicator, and the first message of a pair of ranks in a direction, do not return until the
 * other ranks make theirs, too (ncclTransportP2pSetup in its src/transport.cc waits for the peer).
 */
#ifndef TESTS_FAKECUDA_NCCL_CONNECT_H
#define TESTS_FAKECUDA_NCCL_CONNECT_H

#include <vector>

#include "tests/fakecuda/nccl_progress.h"

namespace fake
{

/* Let the host wait as these calls of one communicator do: one, or those of a group. The device
 * goes on meanwhile. */
void nccl_connect(const std::vector<const nccl_progress *> &calls);

} // namespace fake

#endif
