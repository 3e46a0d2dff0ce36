# Install rules: headers, the CMake package (find_package(decant)), and decant.pc.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(decant_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/decant")

install(TARGETS decant EXPORT decantTargets)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/decant" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh")
install(EXPORT decantTargets NAMESPACE decant:: DESTINATION "${decant_package_dir}")

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/decantConfig.cmake.in" "${PROJECT_BINARY_DIR}/decantConfig.cmake"
  INSTALL_DESTINATION "${decant_package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/decantConfigVersion.cmake" COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/decantConfig.cmake" "${PROJECT_BINARY_DIR}/decantConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/DecantComponents.cmake"
        DESTINATION "${decant_package_dir}")

configure_file("${PROJECT_SOURCE_DIR}/cmake/decant.pc.in" "${PROJECT_BINARY_DIR}/decant.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/decant.pc" DESTINATION "${CMAKE_INSTALL_DATADIR}/pkgconfig")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
