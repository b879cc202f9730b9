// ARMv8.2 as in table_neon.cpp, but quantised weights are multiplied as 8-bit matrices (ARMv8.6, or as an extension before).
#include "kernel_table.h"

#if defined(__ARM_FEATURE_MATMUL_INT8)

#    include "quant_kernel.h"
#    include "vec_neon_i8mm.h"

namespace dspark::kernels {

const kernel_table * table_neon_i8mm() {
    static const kernel_table table = [] {
        kernel_table t = *table_neon();
        t.name         = "neon_i8mm";
        fill_all_quant<neon_i8mm>(t);
        return t;
    }();
    return &table;
}

} // namespace dspark::kernels

#else

const dspark::kernels::kernel_table * dspark::kernels::table_neon_i8mm() { return nullptr; }

#endif
