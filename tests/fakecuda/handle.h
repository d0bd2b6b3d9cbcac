/*
 * tests/fakecuda/handle.h - streams, events, communicators and cuBLAS handles: a program destroys
 * what it creates, and a leak is reported otherwise. After a failure it may leave them, because to
 * destroy them may wait for ever.
 */
#ifndef TESTS_FAKECUDA_HANDLE_H
#define TESTS_FAKECUDA_HANDLE_H

namespace fake
{

void handle_created(const void *handle);
void handle_destroyed(const void *handle);
void handles_may_stay(); /* from now on, because something has failed */

} // namespace fake

#endif
