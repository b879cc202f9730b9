// ARMv8.2 with dot products.
#include "kernel_table.h"

#if defined(__ARM_FEATURE_DOTPROD)

#    include "attention_kernel.h"
#    include "plain_kernel.h"
#    include "quant_kernel.h"
#    include "vec_neon.h"

namespace dspark::kernels {

const kernel_table * table_neon() {
    static const kernel_table table = [] {
        kernel_table t{"neon", neon::lanes, neon::q8_bias, attention_of<neon>(), {}};
        fill_all_quant<neon>(t);
        fill_all_plain<neon>(t);
        return t;
    }();
    return &table;
}

} // namespace dspark::kernels

#else

const dspark::kernels::kernel_table * dspark::kernels::table_neon() { return nullptr; }

#endif
