#include "isa.h"

namespace dspark::kernels {

bool select_isa() { return true; }

const char * isa_name() { return ""; }

} // namespace dspark::kernels
