/*
 * comm/cpu_transport.h - collectives of the CPU device: functions on host memory, queued like all
 * work of the device. Only comm/ uses this.
 */
#ifndef COMM_CPU_TRANSPORT_H
#define COMM_CPU_TRANSPORT_H

#include "comm/transport.h"

extern const struct comm_transport comm_cpu_transport;

#endif
