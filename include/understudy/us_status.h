/**
 * Status codes and error details: the way every fallible function of the library reports.
 *
 * A function that can fail returns us_status (0 is success) and fills an optional, caller-owned us_err. Results go
 * through out-parameters and are written only on success. The library never prints and never exits.
 *
 * An error has four parts, which the command prints as one line `understudy: WHAT [CLASS]: WHERE: TODO`:
 * what went wrong, its class (one lower-case word of the vocabulary in docs/user/errors.md, e.g. "below-top-k"),
 * where (file, key, tensor, byte), and what to do about it.
 */
#ifndef UNDERSTUDY_US_STATUS_H
#define UNDERSTUDY_US_STATUS_H

#include <stdarg.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define US_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define US_WARN_UNUSED       __attribute__((warn_unused_result))
#define US_API               __attribute__((visibility("default")))
#else
#define US_PRINTF(fmt, args)
#define US_WARN_UNUSED
#define US_API
#endif

#define US_STATUS_MAP(X)                                                                                               \
    X(OK, 0, "success")                                                                                                \
    X(E_NOMEM, -1, "out of memory")                                                                                    \
    X(E_INVAL, -2, "invalid argument")                                                                                 \
    X(E_FORMAT, -3, "malformed input")                                                                                 \
    X(E_IO, -4, "input or output failed")                                                                              \
    X(E_LIMIT, -5, "a limit is exceeded")                                                                              \
    X(E_UNSUPPORTED, -6, "not supported")                                                                              \
    X(E_REFUSED, -7, "refused")                                                                                        \
    X(E_DIFFERENT, -8, "the answer is no")                                                                             \
    X(E_CANCELLED, -9, "cancelled")                                                                                    \
    X(E_NONFINITE, -10, "not a finite number")

typedef enum us_status {
#define US_STATUS_ENUM(name, value, text) US_##name = value,
    US_STATUS_MAP(US_STATUS_ENUM)
#undef US_STATUS_ENUM
} us_status;

enum { US_ERR_TEXT = 768, US_ERR_CLASS = 40 };

/** Details of a failure. Zero-initialise it; it owns nothing. */
typedef struct us_err {
    us_status code;
    int sys;                 /* errno of the failing system call, or 0 */
    uint64_t offset;         /* byte position in the input, where one is known */
    char cls[US_ERR_CLASS];  /* class of the error, or "" */
    char what[US_ERR_TEXT];  /* one line, control characters already escaped */
    char where[US_ERR_TEXT]; /* file, key, tensor; may be "" */
    char todo[US_ERR_TEXT];  /* advice; may be "" */
} us_err;

/** Name of a status, e.g. "E_FORMAT"; never NULL. */
US_API const char *us_status_name(us_status s);
/** Short text of a status, e.g. "malformed input"; never NULL. */
US_API const char *us_status_text(us_status s);

/**
 * Record a failure and return its code, so that `return us_fail(err, US_E_FORMAT, "header-json", "...")` reads well.
 * Clears `where` and `todo`. err may be NULL. cls may be NULL.
 */
US_API us_status us_fail(us_err *err, us_status code, const char *cls, const char *fmt, ...) US_PRINTF(4, 5);
/** Like us_fail for a failed system call: appends the text of errno value `sys`. */
US_API us_status us_fail_sys(us_err *err, int sys, const char *cls, const char *fmt, ...) US_PRINTF(4, 5);
/** Out of memory: what was being done. Returns US_E_NOMEM. */
US_API us_status us_fail_nomem(us_err *err, const char *doing);
/**
 * Say where: puts the text in front of what `where` already holds ("outer, inner"), so that each layer on the way out
 * adds what it knows. Returns err->code (US_OK when err is NULL).
 */
US_API us_status us_err_where(us_err *err, const char *fmt, ...) US_PRINTF(2, 3);
/** Say what to do; the innermost advice wins (a second call changes nothing). */
US_API us_status us_err_todo(us_err *err, const char *fmt, ...) US_PRINTF(2, 3);
/** The whole line without newline: "WHAT [CLASS]: WHERE: TODO". Always terminated; returns its length. */
US_API int us_err_line(const us_err *err, char *out, int cap);

#define US_TRY(expr)                                                                                                   \
    do {                                                                                                               \
        us_status us_s_ = (expr);                                                                                      \
        if (us_s_ != US_OK) return us_s_;                                                                              \
    } while (0)

/** As US_TRY, for functions with a single clean-up label `done:` and a local `us_status s`. */
#define US_GO(expr)                                                                                                    \
    do {                                                                                                               \
        s = (expr);                                                                                                    \
        if (s != US_OK) goto done;                                                                                     \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
