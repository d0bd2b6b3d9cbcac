/*
 * tests/fakecuda/nccl_element.h - the types of elements that collectives of NCCL move and reduce.
 */
#ifndef TESTS_FAKECUDA_NCCL_ELEMENT_H
#define TESTS_FAKECUDA_NCCL_ELEMENT_H

#include <nccl.h>

#include <cstddef>
#include <cstdint>

namespace fake
{

/* Bytes of an element. A type that the fake device does not have is reported. */
size_t nccl_width(ncclDataType_t type);

/* What messages and FAKECUDA_CALLS call a type that nccl_width accepts. */
const char *nccl_type_name(int32_t type);

/* to = op(to, from), for n elements; op: ncclSum or ncclMax. A partial sum of bf16 is rounded on
 * its way to the next rank. */
void nccl_combine(char *to, const char *from, size_t n, int type, int op);

} // namespace fake

#endif
