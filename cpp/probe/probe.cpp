// White-box module for the tests: named graph nodes, the cache, and the verify and depth rules as plain functions.
#include "depth.h"
#include "draft_context.h"
#include "gguf_file.h"
#include "kernels/hook.h"
#include "verify.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace py = pybind11;

namespace dspark {

namespace {

using floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

// NumPy order: the reverse of ggml's, with the trailing dimensions of size 1 dropped.
floats to_array(const std::vector<float> & values, std::vector<int64_t> ne) {
    while (ne.size() > 1 && ne.back() == 1) {
        ne.pop_back();
    }
    return floats(std::vector<py::ssize_t>(ne.rbegin(), ne.rend()), values.data());
}

ggml_type type_of(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        if (ggml_blck_size((ggml_type) i) > 0 && name == ggml_type_name((ggml_type) i)) {
            return (ggml_type) i;
        }
    }
    throw py::value_error("no ggml type " + name);
}

struct probe {
    std::shared_ptr<const draft_model> model;
    std::unique_ptr<draft_context>     context;

    probe(const std::string & path, uintptr_t target, const std::string & type_k, const std::string & type_v, int n_threads, int n_ctx) {
        draft_context::params params;
        params.n_threads  = n_threads;
        params.type_k     = type_of(type_k);
        params.type_v     = type_of(type_v);
        params.n_ctx      = n_ctx;
        params.keep_nodes = true;
        model             = draft_model::load(path, nullptr, true);
        context           = std::make_unique<draft_context>(model, reinterpret_cast<const llama_model *>(target), params);
    }

    void append(const floats & features) {
        if (features.ndim() != 2 || features.shape(1) != model->hp.n_features()) {
            throw py::value_error("features must be (n, n_features)");
        }
        context->append(features.data(), (int32_t) features.shape(0));
    }

    py::dict propose(int32_t anchor, int32_t n_max, bool with_logits) {
        proposal out;
        context->propose(anchor, n_max, with_logits, nullptr, out);
        py::dict result;
        result["ids"]               = out.ids;
        result["confidence_logits"] = out.confidence_logits;
        const int64_t n             = (int64_t) out.ids.size();
        if (!out.logits.empty()) {
            result["logits"] = to_array(out.logits, {(int64_t) out.logits.size() / n, n});
        }
        return result;
    }

    py::object node(const std::string & name) const {
        std::vector<int64_t>     ne;
        const std::vector<float> values = context->node(name, ne);
        return ne.empty() ? py::object(py::none()) : py::object(to_array(values, ne));
    }

    py::bytes cache_rows(int32_t il, bool v) {
        const std::vector<uint8_t> bytes = context->cache_rows(il, v);
        return py::bytes(reinterpret_cast<const char *>(bytes.data()), bytes.size());
    }
};

// FLASH_ATTN_EXT as ggml-cpu computes it with n_threads: q (n_q, n_head, n_dk), k and v (n_kv, n_head_kv, n_dk or n_dv), mask (any, n_q, n_kv)
// as bits of F16, sinks (n_head); gives (n_q, n_head, n_dv).
floats attention(const floats & q, const floats & k, const floats & v, const py::object & mask, const py::object & sinks, float scale,
                 float max_bias, float softcap, const std::string & type_k, const std::string & type_v, int n_threads) {
    using halves = py::array_t<uint16_t, py::array::c_style | py::array::forcecast>;
    ggml_context_ptr  tensors = new_meta_context(16), ops = new_meta_context(16, 16);
    const auto        make    = [&](const py::array & a, ggml_type type) {
        return ggml_new_tensor_3d(tensors.get(), type, a.shape(2), a.shape(1), a.shape(0));
    };
    ggml_tensor * tq = make(q, GGML_TYPE_F32);
    ggml_tensor * tk = make(k, type_of(type_k));
    ggml_tensor * tv = make(v, type_of(type_v));
    ggml_tensor * tm = mask.is_none() ? nullptr : make(halves(mask), GGML_TYPE_F16);
    ggml_tensor * ts = sinks.is_none() ? nullptr : ggml_new_tensor_1d(tensors.get(), GGML_TYPE_F32, floats(sinks).size());

    const auto    turned = [&](ggml_tensor * t) { return ggml_permute(ops.get(), t, 0, 2, 1, 3); };
    ggml_tensor * out    = ggml_flash_attn_ext(ops.get(), turned(tq), turned(tk), turned(tv), tm, scale, max_bias, softcap);
    ggml_prec_set_acc(out, GGML_PREC_F32);
    ggml_flash_attn_ext_add_sinks(out, ts);
    ggml_set_output(out);
    ggml_cgraph * graph = ggml_new_graph_custom(ops.get(), 16, false);
    ggml_build_forward_expand(graph, out);

    ggml_backend_dev_t cpu = find_device(nullptr);
    buffer_ptr         buffer(ggml_backend_alloc_ctx_tensors_from_buft(tensors.get(), ggml_backend_dev_buffer_type(cpu)));
    const auto         set = [](ggml_tensor * t, const floats & values) {
        std::vector<char> rows(ggml_nbytes(t));
        if (t->type == GGML_TYPE_F32) {
            memcpy(rows.data(), values.data(), rows.size());
        } else {
            ggml_quantize_chunk(t->type, values.data(), rows.data(), 0, ggml_nelements(t) / t->ne[0], t->ne[0], nullptr);
        }
        ggml_backend_tensor_set(t, rows.data(), 0, rows.size());
    };
    set(tq, q);
    set(tk, k);
    set(tv, v);
    if (tm) {
        ggml_backend_tensor_set(tm, halves(mask).data(), 0, ggml_nbytes(tm));
    }
    if (ts) {
        set(ts, floats(sinks));
    }
    backend_ptr    backend = new_backend(cpu, n_threads);
    ggml_backend_t raw     = backend.get();
    sched_ptr      sched(ggml_backend_sched_new(&raw, nullptr, 1, 32, false, false));
    if (!ggml_backend_sched_alloc_graph(sched.get(), graph) || ggml_backend_sched_graph_compute(sched.get(), graph) != GGML_STATUS_SUCCESS) {
        throw std::runtime_error("ggml could not compute the graph");
    }
    std::vector<float> result((size_t) ggml_nelements(out));
    ggml_backend_tensor_get(out, result.data(), 0, ggml_nbytes(out));
    return floats({q.shape(0), q.shape(1), v.shape(2)}, result.data());
}

} // namespace

} // namespace dspark

PYBIND11_MODULE(dspark_probe, m) {
    using namespace dspark;

    py::register_exception_translator([](std::exception_ptr p) {
        try {
            if (p) {
                std::rethrow_exception(p);
            }
        } catch (const error & e) {
            PyErr_SetString(PyExc_RuntimeError, (std::string(dspark_status_name(e.status)) + ": " + e.what()).c_str());
        }
    });

    m.def("bind", [](const std::vector<uintptr_t> & handles) {
        std::vector<void *> libraries;
        for (uintptr_t handle : handles) {
            libraries.push_back(reinterpret_cast<void *>(handle));
        }
        bind(libraries.data(), libraries.size());
    });
    m.def("argmax", [](const floats & values) { return argmax(values.data(), (int32_t) values.size()); });
    m.def("depth_by_confidence", &depth_by_confidence);
    m.attr("n_inject_rows") = n_inject_rows;

    m.def("kernels", [](bool on) {
        kernels::install(on ? kernels::mode::on : kernels::mode::off, 0);
        return kernels::get_state().n_attention;
    });
    m.def("attention", &attention, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("mask") = py::none(), py::arg("sinks") = py::none(),
          py::arg("scale") = 1.0f, py::arg("max_bias") = 0.0f, py::arg("softcap") = 0.0f, py::arg("type_k") = "f16", py::arg("type_v") = "f16",
          py::arg("n_threads") = 1);

    py::class_<verification>(m, "Verification")
        .def(py::init<std::vector<int32_t>>())
        .def_property_readonly("row", &verification::row)
        .def_property_readonly("n_accepted", &verification::n_accepted)
        .def("accept", &verification::accept);

    py::class_<probe>(m, "DraftProbe")
        .def(py::init<const std::string &, uintptr_t, const std::string &, const std::string &, int, int>(), py::arg("path"),
             py::arg("target") = 0, py::arg("type_k") = "f32", py::arg("type_v") = "f32", py::arg("n_threads") = 1, py::arg("n_ctx") = 0)
        .def("append", &probe::append)
        .def("rewind", [](probe & p, int32_t n) { p.context->rewind(n); })
        .def("flush", [](probe & p) { p.context->flush(); })
        .def_property_readonly("n_past", [](const probe & p) { return p.context->n_past(); })
        .def_property_readonly("kv_size", [](const probe & p) { return p.context->kv_size(); })
        .def("propose", &probe::propose, py::arg("anchor"), py::arg("n_max") = 1 << 20, py::arg("with_logits") = false)
        .def("node", &probe::node, "A named node of the last proposal in NumPy order, None if there is none of the name.")
        .def("gathered_bytes", [](const probe & p, const std::string & weight) { return p.context->gathered_bytes(weight); })
        .def("cache_rows", &probe::cache_rows, py::arg("layer"), py::arg("v"));
}
