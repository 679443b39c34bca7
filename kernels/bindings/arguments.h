// Conversion of Python dicts to argument structs.
//
// A struct lists its fields in a member `visit(field)`, which calls field(name, member) for each. `arguments` fills the
// struct from a dict with exactly these names; std::nullopt is None. A new type of field needs a new `FromPython`.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <concepts>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/runtime/experts/moe_operations.h"
#include "kernels/runtime/recurrent/delta_node.h"

namespace numaserve {

// The Python objects that the pointers in a struct point into.
using Kept = std::vector<nanobind::object>;

// Conversion of one value. `read` returns false when the type is not `wanted`, and throws std::invalid_argument when
// the value is not allowed.
template <class T>
struct FromPython;

template <>
struct FromPython<bool> {
  static std::string wanted() { return "a bool"; }
  static bool read(nanobind::handle from, bool& to, Kept&) {
    return PyBool_Check(from.ptr()) && nanobind::try_cast(from, to);
  }
};

template <std::integral T>
struct FromPython<T> {
  static std::string wanted() { return "a " + std::to_string(8 * sizeof(T)) + "-bit int"; }
  static bool read(nanobind::handle from, T& to, Kept&) {
    if (PyBool_Check(from.ptr()) || !PyIndex_Check(from.ptr())) return false;
    const nanobind::object whole = nanobind::steal(PyNumber_Index(from.ptr()));
    if (!whole.is_valid()) throw nanobind::python_error();
    return nanobind::try_cast(whole, to);
  }
};

template <>
struct FromPython<float> {
  static std::string wanted() { return "a number"; }
  static bool read(nanobind::handle from, float& to, Kept&) {
    return !PyBool_Check(from.ptr()) && nanobind::try_cast(from, to);
  }
};

template <>
struct FromPython<std::string> {
  static std::string wanted() { return "a str"; }
  static bool read(nanobind::handle from, std::string& to, Kept&) { return nanobind::try_cast(from, to); }
};

// An enumeration value that Python passes by name.
template <class T, T (*kOf)(std::string_view)>
struct FromName {
  static std::string wanted() { return FromPython<std::string>::wanted(); }
  static bool read(nanobind::handle from, T& to, Kept& kept) {
    std::string name;
    if (!FromPython<std::string>::read(from, name, kept)) return false;
    to = kOf(name);
    return true;
  }
};
template <>
struct FromPython<Activation> : FromName<Activation, activation_of> {};
template <>
struct FromPython<HeadNorm> : FromName<HeadNorm, head_norm_of> {};
template <>
struct FromPython<RowIndex> : FromName<RowIndex, row_index_of> {};
template <>
struct FromPython<Pooling> : FromName<Pooling, pooling_of> {};
template <>
struct FromPython<KvSource> : FromName<KvSource, kv_source_of> {};
template <>
struct FromPython<Scoring> : FromName<Scoring, scoring_of> {};
template <>
struct FromPython<GroupScore> : FromName<GroupScore, group_score_of> {};
template <>
struct FromPython<KvDtype> : FromName<KvDtype, kv_dtype> {};

// A pointer into a Python object, which `kept` keeps alive.
template <class T>
struct FromPython<const T*> {
  static std::string wanted() { return "a " + nanobind::cast<std::string>(nanobind::type<T>().attr("__name__")); }
  static bool read(nanobind::handle from, const T*& to, Kept& kept) {
    if (!nanobind::isinstance<T>(from)) return false;
    to = nanobind::cast<T*>(from);
    kept.push_back(nanobind::borrow(from));
    return true;
  }
};

template <class T>
struct FromPython<std::optional<T>> {
  static std::string wanted() { return FromPython<T>::wanted() + " or None"; }
  static bool read(nanobind::handle from, std::optional<T>& to, Kept& kept) {
    if (from.is_none()) return true;
    return FromPython<T>::read(from, to.emplace(), kept);
  }
};

template <class T>
struct FromPython<std::vector<T>> {
  static std::string wanted() { return "a sequence, each item " + FromPython<T>::wanted(); }
  static bool read(nanobind::handle from, std::vector<T>& to, Kept& kept) {
    if (!PySequence_Check(from.ptr()) || PyUnicode_Check(from.ptr())) return false;
    for (const nanobind::handle each : from)
      if (!FromPython<T>::read(each, to.emplace_back(), kept)) return false;
    return true;
  }
};

// Reads the items of a tuple into `parts`, one by one.
template <class... Parts>
bool read_tuple(nanobind::handle from, Kept& kept, Parts&... parts) {
  if (!PyTuple_Check(from.ptr()) || nanobind::len(from) != sizeof...(parts)) return false;
  size_t index = 0;
  return (FromPython<Parts>::read(from[index++], parts, kept) && ...);
}

template <>
struct FromPython<Place> {
  static std::string wanted() { return "a tuple (offset, leading dimension, collective)"; }
  static bool read(nanobind::handle from, Place& to, Kept& kept) {
    return read_tuple(from, kept, to.offset, to.ld, to.collective);
  }
};

template <>
struct FromPython<CacheIndex> {
  static std::string wanted() { return "a tuple (kind, layer)"; }
  static bool read(nanobind::handle from, CacheIndex& to, Kept& kept) {
    return read_tuple(from, kept, to.kind, to.layer);
  }
};

template <>
struct FromPython<DeltaHeads> {
  static std::string wanted() {
    return "a tuple (key heads, value heads, dimensions of a key, dimensions of a value, gates)";
  }
  static bool read(nanobind::handle from, DeltaHeads& to, Kept& kept) {
    return read_tuple(from, kept, to.keys, to.values, to.key_dim, to.value_dim, to.gates);
  }
};

template <>
struct FromPython<Quantized> {
  static std::string wanted() { return "a tuple ((offset, leading dimension, collective), columns, group)"; }
  static bool read(nanobind::handle from, Quantized& to, Kept& kept) {
    return read_tuple(from, kept, to.out, to.cols, to.group);
  }
};

// Fills a struct; `what` names it in errors. Throws std::invalid_argument for a value that is not allowed, and
// TypeError for a value of another type, a missing name or an unknown name.
template <class Struct>
Struct arguments(const std::string& what, const nanobind::dict& values, Kept& kept) {
  Struct result{};
  size_t known = 0;
  result.visit([&](const char* name, auto& member) {
    using Value = FromPython<std::remove_cvref_t<decltype(member)>>;
    const std::string field = what + ": '" + name + "'";
    if (!values.contains(name)) throw nanobind::type_error((field + " is missing").c_str());
    ++known;
    const nanobind::object value = values[name];
    try {
      if (Value::read(value, member, kept)) return;
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(field + ": " + error.what());
    }
    const char* found = Py_TYPE(value.ptr())->tp_name;
    throw nanobind::type_error((field + " must be " + Value::wanted() + ", not " + found).c_str());
  });
  if (known == values.size()) return result;
  for (const auto& [key, value] : values) {
    const std::string given = nanobind::cast<std::string>(nanobind::str(key));
    bool among = false;
    result.visit([&](const char* name, auto&) { among = among || given == name; });
    if (!among) throw nanobind::type_error((what + ": unknown field '" + given + "'").c_str());
  }
  throw nanobind::type_error((what + ": field names must be strings").c_str());
}

}  // namespace numaserve
