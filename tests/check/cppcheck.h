/* tests/check/cppcheck.h - what cppcheck must know of jansson, which it does not read. */
#ifndef TESTS_CHECK_CPPCHECK_H
#define TESTS_CHECK_CPPCHECK_H

#define json_array_foreach(array, index, value) for (value = json_array_get(array, index);;)
#define json_object_foreach(object, key, value) for (key = next(object), value = next(object);;)

#endif
