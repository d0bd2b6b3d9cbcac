/*
 * tests/fakecuda/undefined.cc - undefined behaviour of C++, in kernels and on the host: takes the
 * place of UBSan's runtime library, whose reports do not name a thread of a kernel. The structs
 * that the compiler passes are in compiler-rt's ubsan_handlers.h; all but one begin with the place.
 */
#include "tests/fakecuda/fake.h"

#define PC __builtin_return_address(0)

struct place {
    const char *file;
    uint32_t line, column;
};

/* Checks that end the process when they fail. The arguments after the place are not used. */
#define HANDLER(name, what)                                                            \
    extern "C" void __ubsan_handle_##name(const place *at)                             \
    {                                                                                  \
        fake::report(PC, "undefined behaviour: %s (%s:%u)", what, at->file, at->line); \
    }

HANDLER(add_overflow_abort, "a sum that overflows")
HANDLER(sub_overflow_abort, "a difference that overflows")
HANDLER(mul_overflow_abort, "a product that overflows")
HANDLER(negate_overflow_abort, "a negation that overflows")
HANDLER(divrem_overflow_abort, "a division by zero, or one that overflows")
HANDLER(shift_out_of_bounds_abort, "a shift by too many bits, or of a negative number")
HANDLER(out_of_bounds_abort, "an index outside of its array")
HANDLER(float_cast_overflow_abort, "a number that the integer type cannot hold")
HANDLER(load_invalid_value_abort, "a bool or enum that has no such value")
HANDLER(invalid_builtin_abort, "a count of the zeros of 0")
HANDLER(vla_bound_not_positive_abort, "an array without elements")
HANDLER(nonnull_arg_abort, "NULL for an argument that may not be NULL")
HANDLER(builtin_unreachable, "code that cannot be reached")
HANDLER(missing_return, "no return value")

extern "C" void __ubsan_handle_nonnull_return_v1_abort(const void *, const place *at)
{
    fake::report(PC, "undefined behaviour: NULL is returned (%s:%u)", at->file, at->line);
}

/* What -fsanitize=alignment,null passes. */
struct mismatch {
    place at;
    const void *type;
    uint8_t log_alignment, kind;
};

extern "C" void __ubsan_handle_type_mismatch_v1(const mismatch *m, const void *p)
{
    if (!p)
        fake::report(PC, "an access through NULL (%s:%u)", m->at.file, m->at.line);
    fake::report(PC, "a misaligned access: %p is not a multiple of %u (%s:%u)", p,
                 1u << m->log_alignment, m->at.file, m->at.line);
}

extern "C" void __ubsan_handle_type_mismatch_v1_abort(const mismatch *m, const void *p)
{
    __ubsan_handle_type_mismatch_v1(m, p);
}
