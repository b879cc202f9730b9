/* The whole test harness: a failed claim ends the program with its place and what libdspark last said. */
#ifndef DSPARK_TEST_H
#define DSPARK_TEST_H

#include "dspark.h"

#include <stdio.h>
#include <stdlib.h>

#define ASSERT(claim)                                                                                                    \
    do {                                                                                                               \
        if (!(claim)) {                                                                                                \
            fprintf(stderr, "%s:%d: not so: %s\n    last error: %s\n", __FILE__, __LINE__, #claim, dspark_last_error());   \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The call returns exactly this status, and every error has its sentence. */
#define ASSERT_STATUS(wanted, call)                                                                                    \
    do {                                                                                                               \
        const dspark_status seen_ = (call);                                                                            \
        if (seen_ != (wanted) || (seen_ != DSPARK_OK && dspark_last_error()[0] == '\0')) {                             \
            fprintf(stderr, "%s:%d: %s\n    returned %s, expected %s\n    last error: %s\n", __FILE__, __LINE__, #call, \
                    dspark_status_name(seen_), dspark_status_name(wanted), dspark_last_error());                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define ASSERT_OK(call) ASSERT_STATUS(DSPARK_OK, call)

#endif
