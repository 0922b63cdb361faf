// Made from pipelines/study/record.py by tests/pipelines/study/test_record.py.
// deno-lint-ignore-file camelcase

export interface CallosumResult {
  grade?: string;
  reasons?: string[];
  volumes_mm3?: Record<string, number>;
  total_mm3?: number;
  area_mm2?: number | null;
  length_mm?: number | null;
  midline_mm?: number | null;
  mean_thickness_mm?: number | null;
  max_thickness_mm?: number | null;
  thickness_mm?: number[];
}

export interface LesionResult {
  lesion?: number;
  mm3?: number;
  region?: string;
  x_mm?: number;
  y_mm?: number;
  z_mm?: number;
  probability?: number | null;
}

export interface LesionsResult {
  grade?: string;
  reasons?: string[];
  lesions?: LesionResult[];
}

export interface ParcelResult {
  freesurfer?: number;
  side?: "left" | "right";
  lobe?: string;
  mm3?: number;
  share?: number | null;
  asymmetry?: number | null;
  agreement?: number | null;
  grade?: string | null;
}

export interface SheetResult {
  side?: "left" | "right";
  mm?: number | null;
  std_mm?: number | null;
  area_mm2?: number;
  mm3?: number;
}

export interface ThicknessResult {
  grade?: string;
  reasons?: string[];
  sheets?: Record<string, SheetResult>;
}

export interface TimePoint {
  participant?: string;
  group?: string;
  year?: number | null;
  scans?: Record<string, string>;
  volumes_mm3?: Record<string, number>;
  stretch_percent?: number;
  views?: string[];
  lesion_sites?: number[];
  voxel_mm3?: number;
}

export interface ScanResult {
  model?: string;
  grade?: string;
  reasons?: string[];
  structure_grades?: Record<string, string>;
  notes?: string[];
  total_brain_mm3?: number | null;
  volumes_mm3?: Record<string, number>;
  measures_mm3?: Record<string, number | null>;
  csf?: "region" | "intracranial" | null;
  tissue_contrast?: number | null;
  pseudo_labels?: string;
  mean_agreement?: number | null;
  agreement?: Record<string, number | null>;
  iou?: Record<string, number | null>;
  pairwise_dice?: Record<string, number | null>;
  volume_cv?: Record<string, number | null>;
  cleaned?: Record<string, number>;
  parcels?: Record<string, ParcelResult>;
  thickness?: ThicknessResult | null;
  callosum?: CallosumResult | null;
  lesions?: LesionsResult | null;
  picture?: string;
  longitudinal?: TimePoint | null;
}
