// Which instruction set the kernels use on this processor.
#pragma once

#include "kernel_table.h"

namespace dspark::kernels {

// The named table, or the best for null; null where this build or this processor has none.
const kernel_table * find_kernels(const char * name);

// The best table, or the one that the environment variable DSPARK_KERNELS_ISA names, for tests.  Chosen once.
const kernel_table * kernels_of_this_machine();

} // namespace dspark::kernels
